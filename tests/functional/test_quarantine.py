# SPDX-License-Identifier: Apache-2.0
"""A card that is not clean is for nobody until an operator says so."""

from __future__ import annotations

import dataclasses
import errno
import io
import pathlib
from typing import Any

import fixtures

from nova_gpu.cmd import quarantine as command
from nova_gpu.core.availability import Source, Unavailable
from nova_gpu.core.model import PciAddress
from nova_gpu.host.state import files, quarantine
from tests.fixtures import kernel, nvidia
from tests.functional import alone, base, cleaned

CARD = base.FIRST_SOCKET[0]
ADDRESS = PciAddress.parse(CARD)
MOVED = "0000:06:00.0"


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

    def test_while_the_host_is_looked_at(self) -> None:
        """A look that began before a card was put into quarantine ends without knowing of it."""
        published = self.computes["host1"].driver._gpus._published
        take_in = published.take_in

        def late(*args: Any) -> None:
            self._delete_stained()
            take_in(*args)

        published.take_in = late
        self.addCleanup(setattr, published, "take_in", take_in)
        self.period()
        published.take_in = take_in
        self.assertOut()

    def test_kept_over_a_restart(self) -> None:
        self._delete_stained()
        self.restart_host("host1")
        self.assertOut()

    def test_unreadable_file(self) -> None:
        self._delete_server(self.server)
        self.folder.mkdir()
        (self.folder / f"{CARD}.json").write_text("{")
        self.period()
        self.assertOut()

    def test_unreadable_folder(self) -> None:
        self._delete_server(self.server)
        self.folder.write_text("a file in its place")
        self.period()
        self.assertInventory(reserved=8, used=0)

    def test_of_an_instance(self) -> None:
        """It keeps its card and comes up with it; nothing of it is reserved twice."""
        card = self.computes["host1"].driver._gpus._published.cards()[0]
        quarantine.put(self.folder, quarantine.entry(card, "it is old", "replace it"))
        self.assertEqual(ADDRESS, card.address)
        self.period()
        self.assertInventory(reserved=0, used=1)
        self._reboot_server(self.server, hard=True)
        self.assertGPUs(self.server, [CARD])
        self._delete_server(self.server)
        self.assertOut()
        self.assertIn("it is old", quarantine.load(self.folder)[ADDRESS].reason)

    def test_quarantine_that_cannot_be_written(self) -> None:
        """It is not forgotten while the service lives, and tried again in every period."""
        self._delete_server(self.boot(self.gpu_flavor(1)))
        self.folder.write_text("a file in its place")
        self._delete_stained()
        self.folder.unlink()
        self.boot_refused(self.gpu_flavor(8))
        self.period()
        self.assertOut()

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

    def test_service_that_ended_while_it_cleaned(self) -> None:
        """Until the next one has done it the card is nobody's."""
        self._delete_server(self.server)
        (self.state() / "gpu-clean" / f"{CARD}.json").unlink()
        del self.cleaned.cards[:]
        self.restart_host("host1")
        self.assertEqual([f"host1 {CARD}"], self.cleaned.cards)
        self.assertEqual({}, quarantine.load(self.folder))
        self.assertGPUs(self.boot(self.gpu_flavor(8)), base.ALL)

    def _move(self) -> None:
        """At a boot the firmware numbers the buses anew."""
        host = self.hosts["host1"]
        host.remove(CARD)
        host.add_gpu(MOVED, "10de", "1091", model="Tesla M2090", minor=4)
        path = host.roots.proc / f"driver/nvidia/gpus/{MOVED}/information"
        path.write_text(path.read_text().replace(nvidia.gpu_uuid(MOVED), nvidia.gpu_uuid(CARD)))
        kernel.boot(host, "the-second")
        self.restart_host("host1")
        self.period()

    def test_a_card_that_has_another_address_now(self) -> None:
        kernel.boot(self.hosts["host1"], "the-first")
        self._delete_stained()
        self._move()
        self.assertEqual([PciAddress.parse(MOVED)], list(quarantine.load(self.folder)))
        self.assertInventory(reserved=1, used=0)
        server = self.boot(self.gpu_flavor(7))
        self.assertNotIn(MOVED, self.recorded(server))
        self.boot_refused(self.gpu_flavor(1))

    def test_each_is_cleaned_once_after_a_host_boot(self) -> None:
        self._delete_server(self.server)
        del self.cleaned.cards[:]
        self._move()
        others = {f"host1 {each}" for each in base.ALL[1:]}
        self.assertEqual(others, set(self.cleaned.cards))
        proofs = {path.stem for path in (self.state() / "gpu-clean").iterdir()}
        self.assertLessEqual({MOVED, *base.ALL[1:]}, proofs)
        self.assertInventory(reserved=0, used=0)
