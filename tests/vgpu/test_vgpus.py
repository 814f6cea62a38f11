# SPDX-License-Identifier: Apache-2.0
"""A card that a driver divides: mediated devices from the flavor to QEMU, and back.

The driver is the kernel's sample (:mod:`lab.vm.modules`), whose types share one card's
memory.
"""

from __future__ import annotations

from typing import Any

from lab.vm import cards
from nova_gpu.core.vgpu import vgpu
from tests.vfio import base

# Of a function that no driver has, the kernel puts the bus in front of a type's name.
SMALL, LARGE = "pci-small", "pci-large"
# What the sample shows its guests: QEMU's own display.
SEEN = ("1234:1111", "038000")


class VGPUTest(base.VFIOTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(lambda: self.assertEqual([], self.host.mediated()))
        self.addCleanup(self.cloud._delete_everything)

    def test_two_in_one_guest(self) -> None:
        server = self.cloud.boot(self.cloud.flavor(vgpus="= 2", vgpu_type=SMALL))
        self.assertMade(server, SMALL, 2)
        self.assertEqual(2, list(self.seen_in(server).values()).count(SEEN))

    def test_another_type_and_a_reboot(self) -> None:
        """The types share what the card has: there is no other while it has one."""
        server = self.cloud.boot(self.cloud.flavor(vgpus="= 1", vgpu_type=f"s== {LARGE}"))
        self.assertMade(server, LARGE, 1)
        self.cloud.delete(server)
        self.assertEqual([], self.host.mediated())

        server = self.cloud.boot(self.cloud.flavor(vgpus="= 2", vgpu_type=SMALL))
        self.cloud.reboot(server, "HARD")
        self.assertMade(server, SMALL, 2)

    def assertMade(self, server: dict[str, Any], type_id: str, count: int) -> None:
        """In the first slots of the type, and in the guest's XML"""
        slots = [vgpu.Slot.parse(f"{cards.OTHER}/{type_id}/{number}") for number in range(count)]
        uuids = sorted(vgpu.device_uuid(server["id"], slot) for slot in slots)
        self.assertEqual(uuids, self.host.mediated())
        self.assertEqual(uuids, self.named(server))
