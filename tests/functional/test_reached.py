# SPDX-License-Identifier: Apache-2.0
"""What a container that runs can open, whatever its metadata says."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import fixtures
from nova.exception import ComputeResourcesUnavailable

from nova_gpu.cmd import exporter
from nova_gpu.virt.inventory import discovery
from nova_gpu.virt.verify import gather
from nova_gpu.virt.verify.sources import Kind
from tests.functional import alone, base, mig, verifying
from tests.functional.base import Server
from tests.functional.mig import FIRST, LARGE, SMALL, nodes_of, slot

OWN, NEXT, THIRD, FOURTH = base.FIRST_SOCKET
LAST = base.SECOND_SOCKET[3]


class ContainerTestBase(alone.Alone, verifying.Verifying):
    def nodes_in(self, server: Server) -> set[str]:
        """Those of cards that its domain has, by the names that it was started with"""
        every = set(self.domain(server).xpath("devices/hostdev/source/char/text()"))
        return {node for node in every if node in self.nodes["host1"]}

    def errors_of(self, server: Server) -> list[str]:
        """What it reaches, as the log says"""
        said = f"The guest {server['id']} reaches GPU "
        lines = self.log().splitlines()
        found = (line.partition(said)[2].partition(": ")[0] for line in lines if said in line)
        return [each.partition(", ")[0] for each in found]

    def reached(self) -> list[tuple[str, list[str]]]:
        """The notifications that a guest reaches GPUs: of whom, and which"""
        return [
            (each.payload["instance_uuid"], each.payload["addresses"])
            for each in self.sent()
            if each.event_type == "gpu.reached"
        ]

    def sources(self, host: str = "host1") -> gather.Sources:
        """Asked by a command, which has not looked before"""
        return dataclasses.replace(super().sources(host), host=discovery.Discovery())

    def assertOpen(self, device: str, *servers: Server) -> None:
        """The log and the metrics say that these guests can open it, and the metrics of no other"""
        uuids = ", ".join(sorted(server["id"] for server in servers))
        said = f"Several guests can open GPU {device}: {uuids}. "
        self.assertEqual(1, self.log().count(said))
        self.assertEqual({device.partition("/")[0]: len(servers)}, self.shared())

    def shared(self) -> dict[str, int]:
        """Of the metrics: how many guests can open a card, or part of it, that others can too"""
        return self.gauge("nova_gpu_shared")

    def gauge(self, name: str) -> dict[str, int]:
        """Of the metrics: what is not 0, by the card's address"""
        libvirt = self.driver._host
        with self.on("host1"):
            for patched, substitute in (
                ("nova_gpu.cmd.this_host.Reader", lambda: libvirt),
                # Its thread would outlive the test, and who forks waits until all are idle.
                ("nova_gpu.cmd.waiting.within", lambda deadline_s: lambda read: read()),
            ):
                self.useFixture(fixtures.MonkeyPatch(patched, substitute))
            metrics = list(exporter.Metrics(discovery.Discovery(), self.state()).collect())
        (gauge,) = (each for each in metrics if each.name == name)
        return {each.labels["address"]: int(each.value) for each in gauge.samples if each.value}


class ShiftedMinors(ContainerTestBase):
    """The driver is loaded anew while the guest is idle, and numbers its cards otherwise."""

    leaves: ClassVar = {
        "reserved": "a card without a driver, where the numbers have moved up",
        "devices": "the guest's node leads to another card",
        "shared": "so does the node of the instance that has that card",
    }

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.gpu_flavor(1))
        self.assertEqual({"/dev/nvidia4"}, self.nodes_in(self.server))

    def _shift(self) -> None:
        """One card is not taken by it: those behind move up, and node 4 leads to the next one."""
        self.hosts["host1"].bind(LAST, None)
        self.hosts["host1"].renumber({OWN: 3, NEXT: 4, THIRD: 5, FOURTH: 6})


class ShiftedMinorsTest(ShiftedMinors):
    def assertOthersGet(self, count: int) -> None:
        """That many cards and no more, of which none is what the guest reaches"""
        others = [self.boot(self.gpu_flavor(1)) for _ in range(count)]
        self.assertNotIn(NEXT, [self.recorded(other)[0] for other in others])
        self.boot_refused(self.gpu_flavor(1))

    def test_no_new_guest_gets_it_until_this_one_has_ended(self) -> None:
        """It is reported once, in all places, and nothing is done to the guest."""
        self._shift()
        for _ in range(2):
            self.period()
            self.assertInventory(reserved=2, used=1)
        self.assertEqual([NEXT], self.errors_of(self.server))
        self.assertEqual({"/dev/nvidia4"}, self.nodes_in(self.server))
        self.assertFound((Kind.REACHES_OTHERS, self.server["id"]))
        self.assertEqual({NEXT: 1}, self.gauge("nova_gpu_reached"))
        self.assertEqual([(self.server["id"], [NEXT])], self.reached())
        self.assertOthersGet(5)
        self._reboot_server(self.server, hard=True)
        self.assertEqual({"/dev/nvidia3"}, self.nodes_in(self.server))
        self.period()
        self.assertEqual([NEXT], self.recorded(self.boot(self.gpu_flavor(1))))
        self.assertEqual({}, self.gauge("nova_gpu_reached"))
        self.assertFound()


class DividedAnewTest(ContainerTestBase, mig.MIGServersTestBase):
    """The operator makes other MIG instances while the guest is idle."""

    leaves: ClassVar = dict.fromkeys(("devices", "shared", "reserved"), "nodes lead elsewhere")

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.of_type(LARGE))
        self.assertInstances(self.server, [slot(FIRST, 1, 0, LARGE)], nodes_of(0, 1))

    def test_made_whole_under_two_guests(self) -> None:
        """Both have the card's node. It is said in the next period, and when it is over."""
        other = self.boot(self.of_type(SMALL))
        self.assertInstances(other, [slot(FIRST, 9, 0, SMALL)], nodes_of(0, 9))
        self.period()
        self.assertEqual({}, self.shared())
        self.divide(FIRST, [])
        self.told[FIRST] = None
        self.period()
        self.period()
        self.assertOpen(FIRST, self.server, other)
        self.assertIn(
            (Kind.SHARED_BY_DOMAINS, FIRST),
            [(each.kind, each.subject) for each in self.judge().differences],
        )
        self._stop_server(other)
        self.period()
        self.assertIn(f"Only one guest can open GPU {FIRST} now.", self.log())
        self.assertEqual({}, self.shared())
        self.divide(FIRST, mig.LAYOUT)
        self.period()
        self.assertTrue(self.refused({"os-start": None}, other))  # the first may have all of it
        for server in (self.server, other):
            self._stop_server(server)
        self._start_server(self.server)
        self._start_server(other)
        self.assertInstances(other, [slot(FIRST, 9, 0, SMALL)], nodes_of(0, 9))
        self.assertFound()


class RoadTest(ContainerTestBase):
    """A way of Nova's to a running guest that is not overridden"""

    def test_nothing_is_rendered_that_nobody_holds(self) -> None:
        server = self.boot(self.gpu_flavor(1))
        driver, instance = self.driver, self.instance(server)
        said = self.assertRaises(ComputeResourcesUnavailable, self.xml, driver, instance)
        self.assertIn("in a way that this nova-gpu does not know", str(said))
        gpus = driver._gpus
        with gpus.starts.holding(server["id"], gpus.ledger.now.kept_by(server["id"])):
            self.assertIn("/dev/nvidia4", self.xml(driver, instance))
