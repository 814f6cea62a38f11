# SPDX-License-Identifier: Apache-2.0
"""A card that a driver divides: mediated devices from the flavor to QEMU, and back.

The driver is the kernel's sample (:mod:`tools.vfiolab.modules`), whose types share one card's
memory; it is loaded for these tests only.
"""

from __future__ import annotations

from nova_gpu.core import vgpu
from tests.vfio import base
from tools.vfiolab import cards, modules

# Of a function that no driver has, the kernel puts the bus in front of a type's name.
SMALL, LARGE = "pci-small", "pci-large"
# What the sample shows its guests: QEMU's own display.
SEEN = ("1234:1111", "038000")


class VGPUTest(base.VFIOTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.load(modules.NAME, f"parent={cards.OTHER}")
        self.addCleanup(self._unload)
        self.cloud.restart_compute()

    def _unload(self) -> None:
        self.cloud._delete_everything()
        self.assertEqual([], self.host.mediated())
        self.host.unload(modules.NAME)
        self.cloud.restart_compute()

    def test_two_types_of_one_card_and_back(self) -> None:
        flavors = {
            each: self.cloud.flavor(vgpus="= 1", vgpu_type=f"s== {each}") for each in (SMALL, LARGE)
        }
        for type_id, flavor in flavors.items():
            server = self.cloud.boot(flavor)

            slot = vgpu.Slot.parse(f"{cards.OTHER}/{type_id}/0")
            uuid = vgpu.device_uuid(server["id"], slot)
            self.assertEqual([uuid], self.host.mediated())
            self.assertEqual([uuid], self.named(server))
            self.assertIn(SEEN, self.seen_in(server).values())
            self.cloud.delete(server)
            self.assertEqual([], self.host.mediated())

    def test_two_in_one_guest_over_a_reboot(self) -> None:
        server = self.cloud.boot(self.cloud.flavor(vgpus="= 2", vgpu_type=SMALL))
        named = self.named(server)
        self.assertEqual(2, len(named))
        self.assertEqual(named, self.host.mediated())
        self.assertEqual(2, list(self.seen_in(server).values()).count(SEEN))
        self.cloud.reboot(server, "HARD")
        self.assertEqual(named, self.named(server))
        self.assertEqual(named, self.host.mediated())
