# SPDX-License-Identifier: Apache-2.0
"""Virtual functions with a vGPU type and no mediated device, from the provider tree to the guest
and back."""

from __future__ import annotations

from tests.functional import profiled
from tests.functional.base import Server
from tests.functional.profiled import FIRST, SECOND, WHOLE, slots

EMPTY = {1145: (8, 0, 0), 1147: (8, 0, 0), 1155: (4, 0, 0), 1156: (2, 0, 0)}


class RoadTest(profiled.ProfiledServersTestBase):
    HOSTS = ("host1",)

    def test_there_and_back(self) -> None:
        self.assertEqual(EMPTY, self.inventories())
        self.assertInventory(total=1)  # the card that has no functions
        one = self.boot(self.of_type(1155))
        self.assertVGPUs(one, slots(1155, FIRST[0]))
        self.assertEqual([], self.rendered(one))
        self.assertSent("gpu.claim", one, slots(1155, FIRST[0]))
        two = self.boot(self.flavor(vgpus="= 2", vgpu_type="NVIDIA L40S-24Q"))
        self.assertVGPUs(two, slots(1155, FIRST[1], SECOND[0]))
        self.period()
        # The driver makes vGPUs of one type at the functions of a card.
        taken = {1145: (8, 8, 0), 1147: (8, 8, 0), 1155: (4, 0, 3), 1156: (2, 2, 0)}
        self.assertEqual(taken, self.inventories())
        # A card of which the driver names no type any more, and another service
        self.restart_host("host1")
        self.period()
        self.assertEqual(taken, self.inventories())
        whole = self.boot(self.gpu_flavor(1))
        self.assertGPUs(whole, [WHOLE])
        for server in (one, two, whole):
            self._delete_server(server)
        self.assertSent("gpu.release", two, slots(1155, FIRST[1], SECOND[0]))
        self.assertEqual({}, self.kernels["host1"].made)
        self.period()
        self.assertEqual(EMPTY, self.inventories())
        for number in (1156, 1147, 1155):  # round after round, of other types
            server = self.boot(self.of_type(number))
            self.assertVGPUs(server, slots(number, FIRST[0]))
            self._delete_server(server)
            self.assertEqual({}, self.kernels["host1"].made)
            self.period()
        self.assertNotIn("ERROR [nova_gpu", self.log())

    def assertSent(self, event_type: str, server: Server, addresses: list[str]) -> None:
        """The only notification about *server* since the last call"""
        found = [each for each in self.sent() if each.payload["instance_uuid"] == server["id"]]
        (sent,) = [each for each in found if each.event_type == event_type]
        payload = {"count": len(addresses), "addresses": addresses, "vgpu_type": "nvidia-1155"}
        payload |= {"host": "host1", "product_id": "10de:26b9", "product": "L40S"}
        self.assertEqual(payload, {key: sent.payload[key] for key in payload})


class AnotherHostTest(profiled.ProfiledServersTestBase):
    def test_a_driver_that_gives_none(self) -> None:
        self.start_host("host1")
        self.start_host("host2")
        self.kernels["host1"].refused |= {*FIRST, *SECOND}
        servers = [self.boot(self.of_type(1156)) for _ in range(2)]
        for server, function in zip(servers, (FIRST[0], SECOND[0]), strict=True):
            self.assertVGPUs(server, slots(1156, function), "host2")
