# SPDX-License-Identifier: Apache-2.0
"""Guests with pinned processors, whose GPUs are on the NUMA nodes of their cells."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, ClassVar
from unittest import mock

from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import base as libvirt_base

from nova_gpu.scheduler import cells
from nova_gpu.virt.driver import GPULibvirtDriver
from nova_gpu.virt.verify.sources import Conflict
from osc_gpu import explain
from tests.functional import NOVA, base, divided, kvm, live, pinned, plain, profiled, sdk
from tests.functional.base import Server
from tests.functional.pinned import node_of


class PinnedTest(pinned.Pinned, kvm.KVMServersTestBase):
    def places(self, server: Server, host: str = "host1") -> list[int]:
        """The host's nodes of the guest's cards, which are the ones that Nova has for it"""
        cards = self.rendered(server, host)
        self.assertEqual(cards, self.recorded(server))
        self.assertEqual({host: len(cards)}, self.allocated(server))
        return [*map(node_of, cards)]

    def assertPlaced(
        self, cells: list[int], cards: list[int], server: Server, host: str = "host1"
    ) -> None:
        """It has its cells, and its cards, on these nodes of the host."""
        self.assertEqual((cells, cards), (self.cells(server), self.places(server, host)))

    def test_new_guests(self) -> None:
        """Nova puts a cell on the first of those nodes that have the most processors left."""
        self.start_host()
        self.boot(self.pinned(0))
        self.assertPlaced([1], [1], self.boot(self.pinned(1)))
        self.boot(self.pinned(0))
        # Nova chose the second node, where one card is left.
        pair = self.boot(self.pinned(2))
        self.assertPlaced([0], [0, 0], pair)
        self.assertIn("Moved cells from NUMA nodes [1] to [0]", self.log())
        self._delete_server(pair)
        self.period()

        fault = self.boot_refused(self.pinned(3))
        self.assertIn("3 GPUs asked for on one NUMA node with its processors and memory", fault)
        policy = {"hw:pci_numa_affinity_policy": "preferred"}
        self.assertPlaced([0], [0, 0, 1], preferring := self.boot(self.pinned(3, **policy)))
        # Who has them keeps them.
        self.flags(pci_numa_affinity_policy="required", group="gpu")
        self._reboot_server(preferring, hard=True)
        self.restart_host("host1")
        self.assertPlaced([0], [0, 0, 1], preferring)
        self._delete_server(preferring)
        self.period()
        self.assertPlaced([0, 1], [0, 0, 1], self.boot(self.pinned(3, cells=2)))

    def test_guests_without_gpus(self) -> None:
        """They leave the processors of the other node to its GPUs."""
        self.start_host()
        pair = self.boot(self.pinned(2))
        self.flags(move_cells_without_gpus=True, group="gpu")
        there = [self.cells(self.boot(self.pinned(0))) for _ in range(4)]
        (full,) = self.cells(pair)
        self.assertEqual([[full]] * 3 + [[1 - full]], there)
        self.assertPlaced([1 - full], [1 - full] * 2, self.boot(self.pinned(2)))

    def test_moved_guests(self) -> None:
        for host in ("host1", "host2"):
            self.start_host(host)
            self.boot(self.pinned(0), host=host)
        server = self.boot(self.pinned(2), host="host1")
        self.assertPlaced([1], [1, 1], server)
        self._migrate_server(server)
        self.assertPlaced([1], [1, 1], server, "host2")
        self._revert_resize(server)
        self.assertPlaced([1], [1, 1], server)
        self._shelve_server(server)
        # Meanwhile others have what it had.
        for host in ("host1", "host2"):
            self.boot(self.pinned(1), host=host)
        self.boot(self.pinned(0), host="host2")
        self._unshelve_server(server)
        for _ in range(2):
            host = self.host_of(server)
            self.assertPlaced([0], [0, 0], server, host)
            self.force_down(host)
            self._evacuate_server(server)
            self.bring_back(host)
        self.periods()
        self.assertPlaced([0], [0, 0], server, self.host_of(server))


class BrokenTest(pinned.Pinned, kvm.KVMServersTestBase):
    NIC_NODE = 1

    def test_required_in_a_resize(self) -> None:
        """Nova chooses no other host then; everybody reads that, and its owner takes it back."""
        for host in ("host1", "host2"):
            self.start_host(host)
        spare, taken = (self.boot(self.pinned(2), host="host2") for _ in range(2))
        self.assertEqual([[0], [1]], [self.cells(spare), self.cells(taken)])
        self._delete_server(spare)
        nic = {"pci_passthrough:alias": "nic:1"}  # which ties it to the other node
        server = self.boot(self.pinned(0, **nic), host="host1")
        flavor = self.pinned(1, **nic, **{"hw:pci_numa_affinity_policy": "required"})
        self.sent()
        self._resize_server(server, flavor)
        self.assertEqual((["host2"], [1]), ([self.host_of(server)], self.cells(server)))
        (card,) = self.rendered(server, "host2")
        self.assertEqual(0, node_of(card))
        reason = "its flavor wants 1 GPUs on NUMA node 1, where its processors and memory are"
        self.assertIn(f"Starting with GPUs on other NUMA nodes: {reason}", self.log())
        (claim,) = self.sent()
        self.assertIn(reason, claim.payload["reason"])
        message = f"its GPU {card} is on NUMA node 0, and its processors and memory are on 1"
        self.assertIn(message, self.why(server))
        self._revert_resize(server)
        self.assertEqual([], self.recorded(server))
        self.assertEqual("host1", self.host_of(server))
        self.assertNotIn("NUMA", self.why(server))
        self.assertEqual([], self.differences())

        self._resize_server(server, flavor)
        self.confirm(server, "host1")
        self.period("host2")
        differences = [
            (difference.kind, difference.subject) for difference in self.judge("host2").differences
        ]
        self.assertEqual([(Conflict.CARD_REMOTE, card)], differences)

    def test_an_image_that_gives_cells(self) -> None:
        self.start_host("host1")
        words = {"hw_cpu_policy": "dedicated", "hw_pci_numa_affinity_policy": "preferred"}
        server = self.boot(self.gpu_flavor(3), image_uuid=self.image(**words))
        (cell,), nodes = self.cells(server), set(map(node_of, self.recorded(server)))
        self.assertEqual({0, 1}, nodes)
        reason = f"is on NUMA node {1 - cell}, and its processors and memory are on {cell}"
        self.assertIn(reason, self.why(server))
        self._delete_server(server)  # its pages are not counted for the comparison at the end

    def test_two_builds_that_swap(self) -> None:
        """Each has claimed the GPUs of the other's node, and no other place is left."""
        self.start_host("host1")
        for _ in range(3):
            self.boot(self.pinned(0, cells=2))
        builds, others = list[Callable[[], None]](), list[Server]()
        prepare = GPULibvirtDriver.prepare_for_spawn

        def prepare_both(self_: Any, instance: Any) -> None:
            builds.append(functools.partial(prepare, self_, instance))
            if len(builds) == 1:
                others.append(self.boot(self.pinned(2)))
            else:
                for build in builds:
                    build()

        # The scheduler has chosen the host for both before that reports a claim.
        early = mock.patch.object(cells.GuestCells, "shortage", return_value=None)
        with mock.patch.object(GPULibvirtDriver, "prepare_for_spawn", prepare_both), early:
            server = self.boot(self.pinned(2, **{"pci_passthrough:alias": "nic:1"}))
        self.assertIn("Swapped GPUs with instance", self.log())
        for booted_server, node in ((server, 1), *((other, 0) for other in others)):
            self.assertEqual([node], self.cells(booted_server))
            self.assertEqual([node] * 2, [*map(node_of, self.rendered(booted_server))])
            self.assertEqual(self.rendered(booted_server), self.recorded(booted_server))
        self.assertEqual([], self.differences())

    def why(self, server: Server) -> str:
        _, shown, _ = sdk.shown(self, explain.ExplainServer, "-f", "json", server["id"])
        return "\n".join(json.loads(shown)["why"])


class PortTest(pinned.Pinned, kvm.KVMServersTestBase):
    """An instance with a port of a network card's function, which ties it to the card's node"""

    def setUp(self) -> None:
        super().setUp()
        self.neutron = self.useFixture(libvirt_base.LibvirtNeutronFixture(self))
        vf = {"vendor_id": "8086", "product_id": "1515", "physical_network": "physnet4"}
        self.flags(device_spec=[json.dumps(vf)], group="pci")

    def test_an_evacuation(self) -> None:
        for host in ("host1", "host2"):
            nics = fakelibvirt.HostPCIDevicesInfo(num_pfs=1, num_vfs=1, numa_node=1)
            self.start_host(host, pci_info=nics)
        spare, taken = (self.boot(self.pinned(2), host="host2") for _ in range(2))
        self._delete_server(spare)
        port = self.neutron.create_port({"port": self.neutron.network_4_port_1})["port"]
        flavor = self.pinned(1, **{"hw:pci_numa_affinity_policy": "preferred"})
        networks = [{"port": port["id"]}]
        server = self._create_server(flavor_id=flavor, networks=networks, host="host1")
        self.force_down("host1")
        self._evacuate_server(server)
        self.bring_back("host1")
        # The other node has GPUs, and is not the network card's.
        self.assertEqual([[1], [1]], [self.cells(taken), self.cells(server)])
        self.assertEqual([0], [*map(node_of, self.recorded(server))])
        self.assertEqual([], self.differences())


class Story(pinned.Pinned, live.Moving):
    """One guest through all that can be done to it, with the GPUs of the node of its cell.

    ``COUNT``: all devices of a node. ``WORDS``: the flavor's, without the number. ``MOVES``:
    whether it moves while it runs.
    """

    NIC_NODE = 1
    COUNT = 2
    WORDS: ClassVar[dict[str, str]]
    MOVES = True

    def test_on_its_host(self: Any) -> None:
        places = self.tell(
            self.hard_reboot, self.rebuild, self.rescue_and_back, self.stop_and_start
        )
        # Another had its GPUs meanwhile, and it went to where there were some.
        self.assertEqual({("host1", 0), ("host1", 1)}, places)

    def test_moves(self: Any) -> None:
        places = self.tell(
            *(self.migrate, self.resize, self.resize_and_back, self.live_migrate_twice),
            *(self.shelve_and_back, self.evacuate),
        )
        self.assertEqual({"host1", "host2"}, {host for host, _ in places})

    def tell(self: Any, *operations: Callable[[], Iterator[None]]) -> set[tuple[str, int]]:
        """Have *operations* done, and return where it was after them."""
        for host in ("host1", "host2"):
            if host not in self.computes:
                self.start_host(host)
            # Nova has tied it to the node of the network card.
            beside = self.boot(self.pinned(0, **{"pci_passthrough:alias": "nic:1"}), host=host)
            self.assertEqual([self.NIC_NODE], self.cells(beside))
        self.server = self.boot(self.wanted(self.COUNT), host="host1")
        places = {self.assertTogether("boot")}
        for operation in operations:
            for _ in operation():
                places.add(self.assertTogether(operation.__name__))
        return places

    def wanted(self: Any, count: int) -> str:
        words = {name: word or f"= {count}" for name, word in self.WORDS.items()}
        return str(self.pinned(0, **words, **{"gpu:on_stop": "release"}))

    def assertTogether(self: Any, operation: str) -> tuple[str, int]:
        """It has its GPUs on the node of its cell, and Nova counts as much as instances have, also
        after a restart of each host and an audit. Return its place."""
        host, devices = self.host_of(self.server), self.recorded(self.server)
        (node,) = self.cells(self.server)
        self.assertEqual([node] * self.COUNT, [*map(node_of, devices)], operation)
        self.assertDevices(self.server, devices, host)
        differences = [
            difference for difference in self._differences_now() if difference.kind == "tracker"
        ]
        self.assertEqual([], differences, operation)
        for name in self.hosts:
            self.restart_host(name)
        self.assertEqual([], self.differences(), operation)
        self.assertEqual(devices, self.recorded(self.server), operation)
        return host, node

    def assertDevices(self: Any, server: Server, devices: list[str], host: str) -> None:
        self.assertVGPUs(server, devices, host)

    def other(self: Any, host: str, cells: list[int]) -> Server:
        """Boot an instance that has all GPUs of the node that it had."""
        servers = [self.boot(self.wanted(self.COUNT), host=host) for _ in range(2)]
        (other,) = (server for server in servers if self.cells(server) == cells)
        self._delete_server(next(server for server in servers if server is not other))
        return other

    def hard_reboot(self: Any) -> Iterator[None]:
        self._reboot_server(self.server, hard=True)
        yield

    def rebuild(self: Any) -> Iterator[None]:
        self._rebuild_server(self.server, base.IMAGE)
        yield

    def rescue_and_back(self: Any) -> Iterator[None]:
        self.rescue(self.server)
        self.perform(self.server, "unrescue", "ACTIVE")
        yield

    def stop_and_start(self: Any) -> Iterator[None]:
        host, cells = self.host_of(self.server), self.cells(self.server)
        self._stop_server(self.server)
        other = self.other(host, cells)
        self._start_server(self.server)
        yield
        self._delete_server(other)

    def migrate(self: Any) -> Iterator[None]:
        source = self.host_of(self.server)
        self._migrate_server(self.server)
        self.confirm(self.server, source)
        yield

    def resize(self: Any) -> Iterator[None]:
        source = self.host_of(self.server)
        self._resize_server(self.server, self.wanted(self.COUNT))
        self.assertEqual([], self.differences())
        self.confirm(self.server, source)
        yield

    def resize_and_back(self: Any) -> Iterator[None]:
        self._resize_server(self.server, self.wanted(1))
        self.assertEqual([], self.differences())
        self._revert_resize(self.server)
        yield

    def live_migrate_twice(self: Any) -> Iterator[None]:
        for _ in range(2 if self.MOVES else 0):
            self.live_migrate(self.server)
            yield

    def shelve_and_back(self: Any) -> Iterator[None]:
        host, cells = self.host_of(self.server), self.cells(self.server)
        self.flags(shelved_offload_time=0)
        self._shelve_server(self.server)
        other = self.other(host, cells)
        self._unshelve_server(self.server)
        yield
        self._delete_server(other)

    def evacuate(self: Any) -> Iterator[None]:
        host = self.host_of(self.server)
        self.force_down(host)
        self._evacuate_server(self.server)
        self._start_server(self.server)
        self.bring_back(host)
        yield


class CardsStoryTest(Story, kvm.KVMServersTestBase):
    WORDS: ClassVar = {"gpus": ""}
    MOVES = False

    def assertDevices(self, server: Server, devices: list[str], host: str) -> None:
        self.assertGPUs(server, devices, host)


class MediatedStoryTest(Story, divided.DividedServersTestBase):
    """By the policy ``preferred``"""

    COUNT = 4
    WORDS: ClassVar = {"vgpus": "", "vgpu_type": "s== nvidia-64"}


class FunctionsStoryTest(Story, profiled.ProfiledServersTestBase):
    WORDS: ClassVar = {"vgpus": "", "vgpu_type": "s== nvidia-1155"}
    MOVES = False


class PlainStoryTest(Story, plain.PlainServersTestBase):
    """Functions as they are, which a vendor's variant of vfio-pci has"""

    COUNT = 3
    WORDS: ClassVar = {"vgpus": "", "vgpu_type": "s== vf"}
    MOVES = NOVA >= 31

    def prepare(self, host: Any) -> None:
        super().prepare(host)
        for card in (divided.FIRST, divided.SECOND):
            for function in plain.functions(card, 1, 2, 3):
                host.bind(function, "xe-vfio-pci")
