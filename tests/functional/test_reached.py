# SPDX-License-Identifier: Apache-2.0
"""What a container that runs can open, whatever its metadata says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from nova.exception import ComputeResourcesUnavailable

from nova_gpu.virt.inventory import discovery
from nova_gpu.virt.verify import gather
from nova_gpu.virt.verify.sources import Conflict
from tests.functional import base, verifying
from tests.functional.base import Server

OWN, NEXT, THIRD, FOURTH = base.FIRST_SOCKET
LAST = base.SECOND_SOCKET[3]


class ShiftedMinorsTest(verifying.Verifying):
    """The driver is loaded anew while the guest is idle, and numbers its cards otherwise."""

    leaves: Mapping[str, str] = MappingProxyType(
        {
            "reserved": "a card without a driver, where the numbers have moved up",
            "devices": "the guest's node leads to another card",
            "shared": "so does the node of the instance that has that card",
        }
    )

    def nodes_in(self, server: Server) -> set[str]:
        """Those of cards that its domain has, by the names that it was started with"""
        every = set(self.domain(server).xpath("devices/hostdev/source/char/text()"))
        return {node for node in every if node in self.nodes["host1"]}

    def sources(self, host: str = "host1") -> gather.Sources:
        """Asked by a command, which has not looked before"""
        return dataclasses.replace(super().sources(host), discovery=discovery.Discovery())

    def test_no_new_guest_gets_it_until_this_one_has_ended(self) -> None:
        """It is reported once, in all places, and nothing is done to the guest."""
        server = self.boot(self.gpu_flavor(1))
        self.assertEqual({"/dev/nvidia4"}, self.nodes_in(server))
        self.sent()
        # One card is not taken by it: those behind move up, and node 4 leads to the next one.
        self.hosts["host1"].bind(LAST, None)
        self.hosts["host1"].renumber({OWN: 3, NEXT: 4, THIRD: 5, FOURTH: 6})
        for _ in range(2):
            self.period()
            self.assertInventory(reserved=2, used=1)
        self.assertEqual(1, self.log().count(f"The guest {server['id']} reaches GPU {NEXT}"))
        self.assertEqual({"/dev/nvidia4"}, self.nodes_in(server))
        self.assertFound((Conflict.REACHES_OTHERS, server["id"]))
        (reached,) = (
            notification for notification in self.sent() if notification.event_type == "gpu.reached"
        )
        payload = reached.payload["instance_uuid"], reached.payload["addresses"]
        self.assertEqual((server["id"], [NEXT]), payload)
        others = [self.boot(self.gpu_flavor(1)) for _ in range(5)]
        self.assertNotIn(NEXT, [self.recorded(other)[0] for other in others])
        self.boot_refused(self.gpu_flavor(1))
        self._reboot_server(server, hard=True)
        self.assertEqual({"/dev/nvidia3"}, self.nodes_in(server))
        self.period()
        self.assertEqual([NEXT], self.recorded(self.boot(self.gpu_flavor(1))))
        self.assertFound()

    def test_nothing_is_rendered_that_nobody_holds(self) -> None:
        """A way of Nova's to a running guest that is not overridden"""
        server = self.boot(self.gpu_flavor(1))
        driver, instance = self.driver, self.instance(server)
        error = self.assertRaises(ComputeResourcesUnavailable, self.xml, driver, instance)
        self.assertIn("in a way that this nova-gpu does not know", str(error))
        gpus = driver._gpus
        with gpus.starts.holding(server["id"], gpus.ledger.now.kept_by(server["id"])):
            self.assertIn("/dev/nvidia4", self.xml(driver, instance))
