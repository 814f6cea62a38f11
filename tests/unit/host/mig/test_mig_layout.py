# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from nova_gpu.core.model import MIGInstance
from nova_gpu.core.vgpu.vgpu import DividedCard, Kind, Parent, VGPUType
from nova_gpu.host.mig import mig_layout
from tests.fixtures import cards
from tests.fixtures.bases.host import HostTestCase

CARD = "0000:18:00.0"
SMALL, LARGE = "1g.18gb", "3g.71gb"
LAYOUT = (
    MIGInstance(1, 0, LARGE, 71680, 3),
    MIGInstance(9, 0, SMALL, 16384, 1),
    MIGInstance(11, 0, SMALL, 16384, 1),
)


class DividedTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "10de", "2335", minor=3, mig=[(1, 0), (9, 0), (11, 0)])

    def divided(
        self, told: Sequence[MIGInstance] | None, driver: str = "nvidia"
    ) -> DividedCard | None:
        card = dataclasses.replace(
            cards.card(CARD, driver), mig=None if told is None else tuple(told)
        )
        return mig_layout.divided([card], self.host.roots).get(card.address)

    def assertUnread(self, reason: str, told: Sequence[MIGInstance] | None) -> None:
        found = self.divided(told)
        assert found is not None
        self.assertEqual(({}, {}), (found.types, found.parents))
        self.assertIn(reason, found.unread or "")

    def test_types_and_slots(self) -> None:
        types = {
            SMALL: VGPUType(SMALL, memory_mib=16384, per_card=2, slices=1),
            LARGE: VGPUType(LARGE, memory_mib=71680, per_card=1, slices=3),
        }
        numbers = {SMALL: (900, 1100), LARGE: (100,)}
        parent = Parent(Kind.INSTANCE, {}, {SMALL: 2, LARGE: 1}, numbers)
        (address,) = cards.addresses(CARD)
        self.assertEqual(DividedCard(types, {address: parent}), self.divided(LAYOUT))

    def test_whole(self) -> None:
        self.host.set_mig(CARD, [])
        self.assertIsNone(self.divided(None))
        self.assertIsNone(self.divided(None, driver="vfio-pci"))

    def test_nvml_does_not_tell(self) -> None:
        self.assertUnread("NVML does not report them", None)
        self.host.set_mig(CARD, [(1, 0)])
        (self.host.roots.proc / "driver/nvidia/capabilities/gpu3/mig/gi1/access").unlink()
        self.assertUnread("NVML does not report them", None)

    def test_they_contradict_each_other(self) -> None:
        self.assertUnread("instances 1/0, 11/0, 9/0 of it, but NVML reports none", [])
        self.assertUnread("1/0, 11/0, 9/0 of it, but NVML reports 1/0, 9/0", LAYOUT[:2])
        self.host.set_mig(CARD, [])
        self.assertUnread("instances none of it, but NVML reports 1/0", LAYOUT[:1])

    def test_mig_mode_without_instances(self) -> None:
        self.host.set_mig(CARD, [])
        self.assertUnread("it is in MIG mode and has no compute instance", [])

    def test_no_profile(self) -> None:
        for profile in (None, "../1g"):
            other = dataclasses.replace(LAYOUT[2], profile=profile)
            self.assertUnread("the profile of its MIG instance 11/0", [*LAYOUT[:2], other])

    def test_an_id_that_no_slot_can_have(self) -> None:
        self.host.set_mig(CARD, [(1, 100)])
        told = [dataclasses.replace(LAYOUT[0], compute_instance=100)]
        self.assertUnread("the profile of its MIG instance 1/100", told)
