# SPDX-License-Identifier: Apache-2.0
"""Which cards processes of a generated host have open."""

from __future__ import annotations

from collections.abc import Mapping

import fixtures

from nova_gpu.core.model import PciAddress
from nova_gpu.host.pci import discovery
from nova_gpu.virt.delivery import open_cards
from tests.fixtures import pci
from tests.fixtures.verbs import VerbTestCase

CARD = "0000:3b:00.0"


class OpenCardsTest(VerbTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.host.add_gpu(CARD, "10de", "2335", companions=[pci.AUDIO])
        self.cards = open_cards.OpenCards(self.host.roots)

    def reasons(self) -> Mapping[PciAddress, str]:
        found = discovery.cards_at([PciAddress.parse(CARD)], self.host.roots)
        return self.cards.reasons(found)

    def test_what_a_process_of_the_host_has_open(self) -> None:
        device = self.host.path(CARD) / "drm/card0"
        device.mkdir(parents=True)
        (device / "dev").write_text("1:3\n")
        process = self.host.roots.proc / "812"
        (process / "fd").mkdir(parents=True)
        (process / "cmdline").write_bytes(b"nvidia-persistenced\0")
        (process / "fd/7").symlink_to("/dev/null")
        (reason,) = self.reasons().values()
        self.assertEqual("it is in use by processes of the host; end that first", reason)
        self.reasons()
        said = f"GPU {CARD} is not offered while the host uses it: nvidia-persistenced (pid 812)"
        self.assertEqual(1, self.log.output.count(said))
        for address in (CARD, CARD.replace(".0", ".1")):
            self.host.bind(address, "vfio-pci")
        self.assertEqual({}, self.reasons())

    def test_without_privsep_it_is_not_asked(self) -> None:
        broken = fixtures.MockPatch("nova_gpu.privsep.vfio.in_use", side_effect=TypeError("helper"))
        self.useFixture(broken)
        self.assertEqual({}, self.reasons())
        self.assertIn(
            "Cannot tell whether a process has a GPU open, so all count as free: helper",
            self.log.output,
        )
