# SPDX-License-Identifier: Apache-2.0
"""A card that is not clean is for nobody until an operator says so."""

from __future__ import annotations

import dataclasses
import errno
import io
import pathlib

import fixtures

from nova_gpu.cmd import quarantine as command
from nova_gpu.core.availability import Source, Unavailable
from nova_gpu.core.model import PciAddress
from nova_gpu.host.state import files, quarantine
from tests.functional import alone, base, cleaned

CARD = base.FIRST_SOCKET[0]
ADDRESS = PciAddress.parse(CARD)


class QuarantineTest(alone.Alone, base.GPUServersTestBase):
    leaves = dict.fromkeys(("quarantine", "reserved"), "cards that are kept until somebody says so")

    def setUp(self) -> None:
        super().setUp()
        self.cleaned = self.useFixture(cleaned.Cleaned(self))
        self.start_host()
        self.folder = self.state() / "gpu-quarantine"
        self.server = self.boot(self.gpu_flavor(1))

    def _delete_stained(self) -> None:
        self.cleaned.stain(CARD)
        self._delete_server(self.server)

    def assertOut(self) -> None:
        # Nova reports to Placement a moment after the instance is gone.
        self._wait_for_assert(lambda: self.assertInventory(reserved=1, used=0))
        server = self.boot(self.gpu_flavor(1))
        self.assertGPUs(server, [base.FIRST_SOCKET[1]])
        self._delete_server(server)

    def test_out_until_released(self) -> None:
        self._delete_stained()
        self.assertOut()
        self.assertEqual([ADDRESS], list(quarantine.load(self.folder)))
        self.assertIn(f"GPU {CARD} is in quarantine: [gpu]clean_command ended with 1", self.log())
        self.period()
        self.assertOut()
        self.boot_refused(self.gpu_flavor(8))
        printed = self.useFixture(fixtures.MonkeyPatch("sys.stdout", io.StringIO())).new_value
        self.assertEqual(0, command.release(self.folder, CARD))
        self.assertIn("[gpu]clean_command ended with 1", printed.getvalue())
        self.period()
        self.assertOut()  # it is cleaned again, which fails again
        self.cleaned.wipe(CARD)
        self.assertEqual(0, command.release(self.folder, CARD))
        self.period()
        self.assertInventory(reserved=0, used=0)
        self.assertGPUs(self.boot(self.gpu_flavor(8)), base.ALL)

    def test_with_an_entry_of_an_older_release_that_stays(self) -> None:
        """Which says that the card is being cleaned, and cannot be removed for a moment."""
        cards = self.computes["host1"].driver._gpus.releases._published.cards()
        (card,) = (card for card in cards if card.address == ADDRESS)
        self._delete_server(self.server)
        entry = quarantine.entry(card, "it is being cleaned", "")
        quarantine.put(self.folder, dataclasses.replace(entry, cleaning=True))
        remove = files.remove

        def fail(path: pathlib.Path) -> None:
            if path.parent == self.folder:
                raise OSError(errno.EIO, "Input/output error")
            remove(path)

        with fixtures.MockPatchObject(files, "remove", fail):
            self.restart_host("host1")
            releases = self.computes["host1"].driver._gpus.releases
            fault = Unavailable("Xid 79", "replace it", Source.XID)
            releases.quarantine_fault(card, fault, None)
            self.period()
            self.assertOut()
        self.period()
        self.assertOut()
        self.assertEqual("Xid 79", quarantine.load(self.folder)[ADDRESS].reason)
