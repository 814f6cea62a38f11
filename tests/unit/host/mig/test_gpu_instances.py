# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host.mig import gpu_instances
from tests.fixtures import nvidia
from tests.fixtures.bases.host import HostTestCase

CARD, OTHER = "0000:18:00.0", "0000:19:00.0"


class MIGTestCase(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        layout = [(1, 0), (2, 0), (2, 1), (11, 0)]
        self.host.add_gpu(CARD, "10de", "2335", minor=3, mig=layout)
        self.mig = self.host.roots.proc / "driver/nvidia/capabilities/gpu3/mig"


class TestInstances(MIGTestCase):
    def instances(self, card: str = CARD) -> tuple[gpu_instances.Instance, ...]:
        return gpu_instances.of_card(PciAddress.parse(card), self.host.roots)

    def test_each_with_the_capabilities_that_lead_to_it(self) -> None:
        self.assertEqual(
            [
                (each, (nvidia.cap_minor(3, int(each[:-2])), nvidia.cap_minor(3, *_parts(each))))
                for each in ("1/0", "2/0", "2/1", "11/0")
            ],
            [(each.index, each.minors) for each in self.instances()],
        )

    def test_of_that_card_only(self) -> None:
        self.host.add_gpu(OTHER, "10de", "2335", minor=0)
        self.assertEqual((), self.instances(OTHER))
        self.assertEqual((), self.instances("0000:1a:00.0"))

    def test_no_instance_without_all_that_leads_to_it(self) -> None:
        (self.mig / "gi2/access").write_text("DeviceFileMode: 292\n")
        (self.mig / "gi11/ci0/access").unlink()
        self.assertEqual(["1/0"], [each.index for each in self.instances()])


def _parts(index: str) -> tuple[int, int]:
    gpu_instance, _, compute_instance = index.partition("/")
    return int(gpu_instance), int(compute_instance)


class TestSlots(MIGTestCase):
    def test_is_divided(self) -> None:
        def is_divided(card: str = CARD) -> bool:
            return gpu_instances.is_divided(PciAddress.parse(card), self.host.roots)

        self.assertTrue(is_divided())
        self.assertFalse(is_divided(OTHER))
        self.host.set_mig(CARD, [])
        self.assertFalse(is_divided())
        (self.mig / "gi2").mkdir(parents=True)  # of which nothing can be read
        self.assertTrue(is_divided())

    def test_is_slot_there(self) -> None:
        for number, expected in ((201, True), (202, False), (300, False)):
            slot = Slot.parse(f"{CARD}/1g.18gb/{number}")
            self.assertIs(expected, gpu_instances.is_slot_there(slot, self.host.roots))
        (self.mig / "gi2/ci1/access").write_text("?")
        self.assertTrue(
            gpu_instances.is_slot_there(Slot.parse(f"{CARD}/1g.18gb/201"), self.host.roots)
        )
        elsewhere = Slot.parse(f"{OTHER}/1g.18gb/201")
        self.assertFalse(gpu_instances.is_slot_there(elsewhere, self.host.roots))
