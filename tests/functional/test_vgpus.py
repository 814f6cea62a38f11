# SPDX-License-Identifier: Apache-2.0
"""Parts of cards as mediated devices, from the provider tree to the guest and back."""

from __future__ import annotations

import uuid

import nova_gpu.privsep.vgpu
from tests.functional import alone, divided
from tests.functional.divided import FIRST, SECOND, WHOLE, slots

EMPTY = {63: (16, 0, 0), 64: (8, 0, 0), 65: (4, 0, 0), 66: (2, 0, 0)}


class RoadTest(alone.Alone, divided.DividedServersTestBase):
    HOSTS = ("host1",)

    def test_there_and_back(self) -> None:
        self.assertEqual(EMPTY, self.inventories())
        self.assertInventory(total=1)  # the card that is not divided
        one = self.boot(self.of_type(64))
        self.assertVGPUs(one, slots(FIRST, 64, 0))
        two = self.boot(self.of_type(64, 2))
        self.assertVGPUs(two, slots(FIRST, 64, 1, 2))
        other = self.boot(self.of_type(65))
        self.assertVGPUs(other, slots(SECOND, 65, 0))
        self.period()
        # What one type has of a card the others have reserved.
        self.assertEqual(
            {63: (16, 16, 0), 64: (8, 4, 3), 65: (4, 2, 1), 66: (2, 2, 0)}, self.inventories()
        )
        whole = self.boot(self.gpu_flavor(1))
        self.assertGPUs(whole, [WHOLE])
        for server in (one, two, other, whole):
            self._delete_server(server)
        self.assertEqual([], self.kernels["host1"].made)
        self.period()
        self.assertEqual(EMPTY, self.inventories())
        self.assertNotIn("ERROR [nova_gpu", self.log())
        self.assertVGPUs(self.boot(self.of_type(66, 2)), slots(FIRST, 66, 0) + slots(SECOND, 66, 0))

    def test_the_order_over_the_cards(self) -> None:
        self.flags(vgpu_order="breadth_first", group="gpu")
        self.assertVGPUs(
            self.boot(self.of_type(64, 3)), slots(FIRST, 64, 0, 1) + slots(SECOND, 64, 0)
        )
        self.assertVGPUs(self.boot(self.of_type(64)), slots(SECOND, 64, 1))


class RefusalsTest(alone.Alone, divided.DividedServersTestBase):
    def test_somebody_elses(self) -> None:
        self.start_host("host1")
        nova_gpu.privsep.vgpu.make(f"{FIRST}/nvidia-65/0", str(uuid.uuid4()))
        self.period()
        self.assertEqual((2, 1, 0), self.inventories()[66])
        self.assertEqual((4, 1, 0), self.inventories()[65])
        self.assertVGPUs(self.boot(self.of_type(66)), slots(SECOND, 66, 0))
        self.leaves = dict.fromkeys(("vgpu", "reserved"), "somebody else has made one")

    def test_what_nova_itself_divides(self) -> None:
        self.flags(enabled_mdev_types=["nvidia-64"], group="devices")
        self.start_host("host1")
        self.assertEqual({}, self.inventories())
        self.assertInventory(total=1)
        self.assertIn("so that Nova itself divides it", self.log())

    def test_whole_cards_by_option(self) -> None:
        self.flags(vgpu_types=["nvidia-7*", "GRID P4-8?"], group="gpu")
        self.start_host("host1")
        self.assertEqual({66: (2, 0, 0)}, self.inventories())


class AnotherHostTest(divided.DividedServersTestBase):
    def test_a_driver_that_makes_none(self) -> None:
        self.start_host("host1")
        self.start_host("host2")
        for address in (FIRST, SECOND):
            self.kernels["host1"].refused.add(address)
        servers = [self.boot(self.of_type(66)) for _ in range(2)]
        for server, slot in zip(servers, slots(FIRST, 66, 0) + slots(SECOND, 66, 0), strict=True):
            self.assertVGPUs(server, [slot], "host2")
