# SPDX-License-Identifier: Apache-2.0
"""The pool, through Nova's own resource tracker: the lines it lives from are Nova's internals."""

from __future__ import annotations

import collections
import contextlib
import copy
import itertools
import random
import unittest
from collections.abc import Collection, Set
from typing import Any
from unittest import mock

from nova import exception as nova_exception
from nova import objects
from nova.compute import provider_tree, resource_tracker
from nova.virt import hardware
from oslo_utils import uuidutils

from nova_gpu.conf import CONF
from nova_gpu.core import device
from nova_gpu.core.model import PciAddress
from nova_gpu.core.topology import choose, topology
from nova_gpu.core.topology.affinity import Affinity, Policy
from nova_gpu.virt.inventory import exchange, numa_cells, pool, tracker
from nova_gpu.virt.inventory.pool import Claimant
from nova_gpu.virt.usage import ledger
from tests.fixtures import cards
from tests.fixtures.bases import fuzz

REFUSED = nova_exception.ComputeResourcesUnavailable
ROOT, GROUP, OTHER = (uuidutils.generate_uuid() for _ in range(3))

FIRST = ("0000:04:00.0", "0000:05:00.0", "0000:08:00.0", "0000:09:00.0")
SECOND = ("0000:84:00.0", "0000:85:00.0", "0000:88:00.0", "0000:89:00.0")


class Host:
    """Two sockets of four cards; a :class:`pool.FreeDevices`."""

    def __init__(self) -> None:
        gpus = [cards.placed(a, 0) for a in FIRST] + [cards.placed(a, 1) for a in SECOND]
        self.gpus = {gpu.address: gpu for gpu in gpus}
        self.taken: set[PciAddress] = set()
        self.ledger = ledger.Ledger()
        self.asked_for: list[str] = []

    def usable(
        self, provider_uuid: str, addresses: Collection[PciAddress], assigned: Set[Any]
    ) -> frozenset[PciAddress]:
        self.asked_for.append(provider_uuid)
        self.ledger.compare(addresses, assigned)
        return frozenset(set(addresses) - self.taken - self.ledger.now.taken())

    def choose(
        self, provider_uuid: str, free: Collection[PciAddress], count: int
    ) -> tuple[PciAddress, ...]:
        return choose.choose(free, count, topology.places(self.gpus[address] for address in free))

    def improve(
        self,
        provider_uuid: str,
        own: Collection[PciAddress],
        free: Collection[PciAddress],
        claimant: Claimant,
    ) -> Collection[PciAddress]:
        """The nearest; and as often as possible others than it has"""
        distance = self.distances(provider_uuid, free, claimant)
        return sorted(free, key=lambda a: (distance[a], a in own, a))[: len(own)]

    def distances(
        self, provider_uuid: str, devices: Collection[PciAddress], claimant: Claimant
    ) -> dict[PciAddress, int]:
        cells = claimant.affinity()
        there = self.gpus.keys() & devices
        return {a: cells.distance(self.gpus[a].numa_node) if cells else 0 for a in there}

    def hand_out(
        self, addresses: Collection[PciAddress], back: Collection[PciAddress], assigned: Set[Any]
    ) -> None:
        self.ledger.claim(addresses, back, assigned, 60)


class TrackerTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.host = Host()
        self.tracker = resource_tracker.ResourceTracker("host", mock.Mock(), mock.Mock())
        self.tracker.provider_tree = provider_tree.ProviderTree()
        self.tracker.provider_tree.new_root("host", ROOT)
        self.tracker.provider_tree.new_child(GROUP, ROOT, uuid=GROUP)
        self._publish()

    def _publish(self) -> None:
        resources = {"PGPU": pool.publish(GROUP, self.host.gpus, self.host)}
        self.tracker.provider_tree.update_resources(GROUP, resources)

    def claim(self, amount: int) -> list[str]:
        return sorted(resource.identifier for resource in self._claim(amount))

    def _claim(self, amount: int) -> objects.ResourceList:
        allocations = {ROOT: {"resources": {"VCPU": 1}}, GROUP: {"resources": {"PGPU": amount}}}
        return self.tracker._claim_resources(allocations)

    def _period(self, *saved: objects.ResourceList) -> None:
        """The tracker fills its sets from the database, which has *saved*."""
        instances = {
            str(number): mock.Mock(resources=resources) for number, resources in enumerate(saved)
        }
        self.tracker.tracked_instances = set(instances)
        self.tracker._populate_assigned_resources(mock.sentinel.context, instances)


class TrackerTest(TrackerTestCase):
    def test_best_sets_one_after_another(self) -> None:
        """Of the way to each the pool draws others, and puts them back."""
        self.assertEqual(list(FIRST[:1]), self.claim(1))
        self.assertEqual(list(SECOND), self.claim(4))
        self.assertEqual(set(cards.addresses(FIRST[0], *SECOND)), self.host.ledger.now.taken())
        self.assertEqual(list(FIRST[1:3]), self.claim(2))
        self.assertEqual({GROUP}, set(self.host.asked_for))
        assigned = self.tracker.assigned_resources[GROUP]["PGPU"]
        self.assertEqual({*FIRST[:3], *SECOND}, {resource.identifier for resource in assigned})
        for resource in assigned:
            # hashed only once it is what it is to be, or the tracker would not find it again
            self.assertIn(resource, assigned)

    def test_given_back_is_free(self) -> None:
        """At once: a claim may fail before its guest is started."""
        with self.assertRaisesRegex(REFUSED, "Needed 9 .* but 8"):
            self.claim(9)
        self.assertEqual(set(), self.host.ledger.now.taken())
        claimed = self._claim(8)
        self.assertRaises(REFUSED, self.claim, 1)
        self.tracker._release_assigned_resources(claimed)
        self.assertEqual(sorted(FIRST + SECOND), self.claim(8))

    def test_it_is_looked_up_at_the_claim(self) -> None:
        """The tree keeps the old set when the new one has equal elements."""
        published = self.tracker.provider_tree.data(GROUP).resources["PGPU"]
        self.host.taken = set(cards.addresses(*FIRST))
        self._publish()
        self.assertEqual(published, self.tracker.provider_tree.data(GROUP).resources["PGPU"])
        self.assertEqual(list(SECOND), self.claim(4))
        with self.assertRaisesRegex(REFUSED, "Needed 1 .* but 0"):
            self.claim(1)

    def test_never_assigned_is_free(self) -> None:
        """A claim that was refused for something else that it wanted."""
        self.tracker.provider_tree.new_child("other", ROOT, uuid=OTHER)
        self.tracker.provider_tree.update_resources(OTHER, {"PGPU": set()})
        wanted = {GROUP: {"resources": {"PGPU": 8}}, OTHER: {"resources": {"PGPU": 1}}}
        with self.assertRaises(REFUSED):
            self.tracker._claim_resources(wanted)
        self.assertEqual(sorted(FIRST + SECOND), self.claim(8))

    def test_forgotten_by_a_filling_is_not_free(self) -> None:
        claimed = self._claim(4)
        self._period()
        self.assertEqual(list(SECOND), self.claim(4))
        with self.assertLogs("nova_gpu.virt.usage.ledger", "WARNING") as logged:
            self.assertRaises(REFUSED, self.claim, 1)
        for address in FIRST:
            self.assertIn(f"A claim does not get GPU {address}: 0 s ago", "".join(logged.output))
        # Nova says of these that it does not know them.
        self.tracker._release_assigned_resources(claimed)
        self.assertRaises(REFUSED, self.claim, 1)

    def test_released_after_a_filling_that_knew_it_is_free(self) -> None:
        claimed = self._claim(4)
        self._period(claimed)
        self.claim(1)
        self.tracker._release_assigned_resources(claimed)
        self.assertEqual(list(FIRST), self.claim(4))

    def test_nothing_to_ask_and_nothing_there(self) -> None:
        supply = pool._supply_by_provider.pop(GROUP)
        self.assertRaises(REFUSED, self.claim, 1)
        pool._supply_by_provider[GROUP] = supply
        self.host.gpus = {}
        self._publish()
        self.assertRaises(REFUSED, self.claim, 1)


class ExchangeTestCase(TrackerTestCase):
    """A database in memory, and a draw that is another one for each number"""

    def setUp(self, number: int = 0) -> None:
        super().setUp()
        self.draw = random.Random(number)
        self.saved: dict[str, objects.Instance] = {}
        self.fails = 0
        self.tracker._update = mock.Mock()
        self.tracker.compute_nodes = {"host": objects.ComputeNode(numa_topology=None)}
        assigned: Any = mock.Mock(nodename=lambda: "host")
        self.exchanges = exchange.Exchange(
            assigned, tracker.Tracker(lambda: self.tracker), mock.Mock()
        )

        def save(instance: objects.Instance) -> None:
            self.fails -= 1
            if self.fails == 0:
                raise nova_exception.InstanceNotFound(instance_id=instance.uuid)
            self.saved[instance.uuid] = copy.deepcopy(instance)

        for name, method in (
            ("get_by_uuid", lambda context, uuid, expected_attrs: copy.deepcopy(self.saved[uuid])),
            ("save", save),
        ):
            patch = mock.patch.object(objects.Instance, name, method)
            patch.start()
            self.addCleanup(patch.stop)

    def instance(
        self, amount: int, flavor: objects.Flavor | None = None, **fields: Any
    ) -> objects.Instance:
        instance = objects.Instance(
            uuid=uuidutils.generate_uuid(),
            host=CONF.host,
            flavor=flavor or objects.Flavor(extra_specs={}),
            image_ref="",
            system_metadata={},
            task_state=None,
            resources=self._claim(amount),
            migration_context=None,
            pci_requests=None,
            **fields,
        )
        self.saved[instance.uuid] = copy.deepcopy(instance)
        self.tracker.tracked_instances.add(instance.uuid)
        return instance

    def had(self, instance: objects.Instance) -> set[str]:
        return {resource.identifier for resource in instance.resources}


class ExchangeTest(ExchangeTestCase):
    """What instances have of the pool, in the tracker, the database and the ledger"""

    def exchange(
        self, instance: objects.Instance, node: int | None = None, *, waits: bool = False
    ) -> None:
        node = self.draw.randrange(2) if node is None else node
        cells = [objects.InstanceNUMACell(id=node)]
        instance.numa_topology = objects.InstanceNUMATopology(cells=cells)
        self.exchanges.make(instance, moves_cells=False, waits=waits)

    def test_a_build_that_waits(self) -> None:
        """Two have all GPUs of the host, and each those of the other's node."""
        for case, fails, is_swapped in (
            ("prepared", 0, True),
            ("starting", 0, False),
            ("failed", 0, False),
            ("failed, and moved here later", 0, False),
            ("a card of it is gone", 0, False),
            ("deleted", 1, False),
            ("the second is deleted", 2, False),
        ):
            self.setUp()
            first, second = self.instance(4), self.instance(4)
            before = self.had(first), self.had(second)
            self.assertEqual(({*map(str, FIRST)}, {*map(str, SECOND)}), before)
            self.exchange(first, 1, waits=True)
            if case == "starting":
                self.exchange(first, 1)
            if case == "failed":
                self.tracker.tracked_instances.remove(first.uuid)
            if case == "failed, and moved here later":
                first.host = None
            if case == "a card of it is gone":
                del self.host.gpus[PciAddress.parse(FIRST[0])]
            self.fails = fails
            with self.subTest(case):
                raised = self.assertRaises(nova_exception.InstanceNotFound)
                with raised if fails > 1 else contextlib.nullcontext():
                    self.exchange(second, 0)
                after = before[::-1] if is_swapped else before
                for instance, own in zip((first, second), after, strict=True):
                    self.assertEqual(
                        (own, own), (self.had(instance), self.had(self.saved[instance.uuid]))
                    )

    def test_no_card_to_two(self) -> None:
        """Claims, exchanges, failed ones, ends and periods in any order"""
        for number in range(fuzz.examples(20, 300)):
            self.setUp(number)
            instances: list[objects.Instance] = []
            for _ in range(20):
                instance = self.draw.choice(instances) if instances else None
                if instance is None or self.draw.random() < 0.3:
                    with contextlib.suppress(REFUSED):
                        instances.append(self.instance(self.draw.randint(1, 3)))
                elif (act := self.draw.random()) < 0.5:
                    self.fails, before = self.draw.randrange(4), self.had(instance)
                    try:
                        self.exchange(instance, waits=self.draw.random() < 0.5)
                    except nova_exception.InstanceNotFound:
                        self.assertEqual(before, self.had(instance))
                elif act < 0.7:
                    self._period(*(instance.resources for instance in self.saved.values()))
                    self.tracker.tracked_instances |= self.saved.keys()
                else:
                    self.tracker._release_assigned_resources(instance.resources)
                    instances.remove(instance)
                    self.tracker.tracked_instances.discard(instance.uuid)
                    del self.saved[instance.uuid]
                with self.subTest(number=number):
                    own = [self.had(instance) for instance in instances]
                    every = set[str]().union(*own)
                    self.assertEqual(sum(map(len, own)), len(every), own)
                    assigned = self.tracker.assigned_resources[GROUP]["PGPU"]
                    self.assertEqual(every, {resource.identifier for resource in assigned})
                    self.assertEqual(
                        own, [self.had(self.saved[instance.uuid]) for instance in instances]
                    )
                    # What was exchanged is free at once.
                    free = self.tracker.provider_tree.data(GROUP).resources["PGPU"] - assigned
                    self.assertEqual(8 - len(every), len(free))


def used(host: objects.NUMATopology | None) -> list[tuple[object, ...]]:
    """What is used of each node of a host"""
    assert host
    return [
        (cell.id, cell.pinned_cpus, cell.memory_usage, [pages.used for pages in cell.mempages])
        for cell in host.cells
    ]


class CellsTest(ExchangeTestCase):
    """Against every way to put the cells and the cards, on random hosts with Nova's own fit"""

    CPUS = 4

    def host_of(self, count: int) -> objects.NUMATopology:
        cells = []
        for node in range(count):
            cpus = set(range(self.CPUS * node, self.CPUS * (node + 1)))
            used = self.draw.choice([0, 256, 768, 1024])
            cells.append(
                objects.NUMACell(
                    id=node,
                    socket=node // 2,
                    cpuset=set(),
                    pcpuset=cpus,
                    memory=1024,
                    memory_usage=used,
                    cpu_usage=0,
                    mempages=[
                        objects.NUMAPagesTopology(size_kb=4, total=1 << 18, used=used << 8),
                        objects.NUMAPagesTopology(
                            size_kb=2048, total=512, used=self.draw.choice([0, 256, 448])
                        ),
                    ],
                    pinned_cpus=set(self.draw.sample(sorted(cpus), self.draw.randint(0, 4))),
                    siblings=[{cpu} for cpu in cpus],
                )
            )
        return objects.NUMATopology(cells=cells)

    def test_refused_only_if_nothing_fits(self) -> None:
        refused = moved = 0
        for number in range(fuzz.examples(60, 10000)):
            self.setUp(number)
            host = self.host_of(self.draw.randint(1, 8))
            nodes = [cell.id for cell in host.cells]
            gpus = [
                cards.placed(f"0000:{bus:02x}:00.0", self.draw.choice([*nodes, *nodes, None]))
                for bus in range(self.draw.randint(1, 16))
            ]
            self.host.gpus = {gpu.address: gpu for gpu in gpus}
            self._publish()
            taken = self.draw.randint(0, len(gpus) - 1)
            self.host.taken = set(self.draw.sample(list(self.host.gpus), taken))
            count = self.draw.randint(1, min(len(gpus) - taken, 4))
            # Nova tries all orders of more cells.
            policy, cells = self.draw.choice(list(Policy)), self.draw.randint(1, min(5, len(nodes)))
            is_tied = self.draw.random() < 0.2  # by a device of Nova's passthrough
            specs = {"hw:cpu_policy": "dedicated", "hw:numa_nodes": str(cells), "gpus": str(count)}
            specs["hw:pci_numa_affinity_policy"] = policy
            if self.draw.random() < 0.3:
                specs["hw:mem_page_size"] = "2048"
            flavor = objects.Flavor(vcpus=cells, memory_mb=256 * cells, extra_specs=specs)
            instance = self.instance(count, flavor)
            if is_tied:
                nic = objects.InstancePCIRequest(count=1, spec=[])
                instance.pci_requests = objects.InstancePCIRequests(requests=[nic])

            def fit(
                within: objects.NUMATopology, instance: objects.Instance = instance
            ) -> objects.InstanceNUMATopology:
                wanted = hardware.numa_get_constraints(instance.flavor, instance.image_meta)
                return hardware.numa_fit_instance_to_host(within, wanted, provider_mapping=None)

            if (claimed := fit(host)) is None:
                continue
            instance.numa_topology = claimed
            self.saved[instance.uuid] = copy.deepcopy(instance)
            before = hardware.numa_usage_from_instance_numa(host, claimed)._to_json()
            node = self.tracker.compute_nodes["host"]
            node.cpu_allocation_ratio, node.ram_allocation_ratio = 1.0, 1.0
            node.numa_topology = before
            self.exchanges.make(instance, moves_cells=True)

            own = [self.host.gpus[a] for a in map(device.parse, self.had(instance))]
            cell_ids = {cell.id for cell in instance.numa_topology.cells}
            sockets = {cell.id: cell.socket for cell in host.cells}
            holds = Affinity(policy, frozenset(cell_ids), sockets).holds(g.numa_node for g in own)
            free = collections.Counter(
                gpu.numa_node for gpu in gpus if gpu.address not in self.host.taken
            )
            places = itertools.combinations(nodes, cells)
            if is_tied:
                places = iter([tuple(cell.id for cell in claimed.cells)])
            fitting = any(
                Affinity(policy, frozenset(some), sockets).room(free) >= count
                and fit(objects.NUMATopology(cells=[host.cells[n] for n in some]))
                for some in places
            )
            with self.subTest(number=number, policy=policy, cells=cells, count=count):
                self.assertEqual(fitting, holds)
                usage = hardware.numa_usage_from_instance_numa(host, instance.numa_topology)
                self.assertEqual(used(usage), used(numa_cells.host(node)))
                stored = self.saved[instance.uuid]
                self.assertEqual(cell_ids, {cell.id for cell in stored.numa_topology.cells})
                self.assertEqual(self.had(instance), self.had(stored))
            refused += not holds
            moved += cell_ids != {cell.id for cell in claimed.cells}
        self.assertLess(0, refused)
        self.assertLess(0, moved)


class SetTest(unittest.TestCase):
    def setUp(self) -> None:
        self.host = Host()
        self.published = pool.publish(GROUP, self.host.gpus, self.host)

    def test_the_same_is_not_made_again(self) -> None:
        """Every claim of the host publishes all that it has, and reads each in copies."""
        tree = provider_tree.ProviderTree()
        tree.new_root("host", ROOT)
        tree.new_child(GROUP, ROOT, uuid=GROUP)
        tree.update_resources(GROUP, {"PGPU": self.published})
        with mock.patch.object(objects, "Resource", side_effect=AssertionError("made again")):
            again = pool.publish(GROUP, dict(self.host.gpus), self.host)
            for own_tree in (tree, copy.deepcopy(tree)):
                self.assertFalse(own_tree.update_resources(GROUP, {"PGPU": again}))
                self.assertEqual(again, own_tree.data(GROUP).resources["PGPU"])
        self.assertIs(self.published, again)

    def test_drawing_does_not_touch_what_is_published(self) -> None:
        """Nor does the way back keep a service that has ended."""
        self.assertFalse(any(resource.obj_attr_is_set("metadata") for resource in self.published))
        published = copy.deepcopy(self.published)
        drawn = self.published - set()
        for _ in range(5):
            drawn.pop()
        self.assertEqual((published, 8, 3), (self.published, len(published), len(drawn)))
        with self.assertRaises(KeyError):
            (self.published - self.published).pop()
        del self.host, drawn
        self.assertEqual(0, len(self.published - set()))
