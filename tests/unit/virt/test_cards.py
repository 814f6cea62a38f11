# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fixtures

from nova_gpu.core import availability, exception
from nova_gpu.virt.cards import Cards
from nova_gpu.virt.inventory import discovery
from tests.fixtures.bases import compute
from tests.fixtures.bases.compute import DIVIDED
from tests.fixtures.bases.compute import ONE as WELL
from tests.fixtures.bases.compute import TWO as ILL

NEW = "0000:d8:00.0"


class CardsTest(compute.ComputeTestCase):
    @property
    def cards(self) -> Cards:
        return self.gpus.periods.cards

    def offered(self) -> dict[str, str | None]:
        """The whole cards, each with why nobody new is given it"""
        groups = self.gpus._published.groups().values()
        return {
            str(a): availability.text(group.unavailable.get(a, ()))
            for group in groups
            for a in group.gpus
        }

    def test_whole_and_in_parts(self) -> None:
        self.assertEqual({WELL: None, ILL: None}, self.offered())
        self.assertEqual([DIVIDED], [str(each) for each in self.gpus.vgpus.cards.look.cards])

    def test_card_that_is_gone(self) -> None:
        self.host.remove(ILL)
        self.cards.look()
        self.assertEqual({WELL: None, ILL: "it is no longer on the PCI bus"}, self.offered())

    def test_what_is_new_is_said_once_it_is_known_whose(self) -> None:
        self.host.add_gpu(NEW, "10de", "2335", driver="vfio-pci")
        say = self.cards.look()
        words = f"GPU {NEW} (H200 SXM 141GB) is offered to instances"
        self.assertNotIn(words, self.log.output)
        say()
        self.cards.look()()
        self.assertEqual(1, self.log.output.count(words))

    def test_quarantine(self) -> None:
        card = next(each for each in self.gpus._published.cards() if str(each.address) == ILL)
        self.gpus.releases.quarantine(card, "it is mute", "boot the host")
        self.cards.look()
        self.assertIn("it is mute", str(self.offered()[ILL]))
        self.assertIsNone(self.offered()[WELL])

    def test_host_that_cannot_be_read_keeps_what_was_found(self) -> None:
        lost = exception.DiscoveryFailed("/sys", "no sysfs")
        self.useFixture(fixtures.MockPatchObject(discovery.Discovery, "find", side_effect=lost))
        self.cards.look()()
        self.assertEqual({WELL: None, ILL: None}, self.offered())
        self.assertIn("nova-compute goes on with the GPUs' last known state", self.log.output)
