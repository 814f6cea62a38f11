# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import collections
import itertools
import random
import unittest

from nova import objects
from nova.pci import stats
from nova.virt import hardware

from nova_gpu.core.topology import affinity
from nova_gpu.core.topology.affinity import Affinity, Policy
from tests.fixtures.bases import fuzz

HOST = {0: 0, 1: 0, 2: 1, 3: 1}


def novas(of: Affinity, counts: affinity.Counts, wanted: int) -> affinity.Counts:
    """Which pools Nova has for a request of PCI devices"""
    cells = [objects.NUMACell(id=node, socket=socket) for node, socket in of.sockets.items()]
    device_stats = stats.PciDeviceStats(objects.NUMATopology(cells=cells), None)
    pools = [{"numa_node": node, "count": count} for node, count in counts.items()]
    own = [objects.InstanceNUMACell(id=node) for node in of.cells]
    request = objects.InstancePCIRequest(count=wanted, numa_policy=of.policy)
    left = device_stats._filter_pools_for_numa_cells(pools, request, own)
    return {pool["numa_node"]: pool["count"] for pool in left}


class BruteForceTest(unittest.TestCase):
    """Against Nova's own code and every set of nodes, on random hosts"""

    def drawn(self, draw: random.Random) -> tuple[Policy, dict[int, int | None], affinity.Counts]:
        sockets = {node: node // draw.randint(1, 4) for node in range(draw.randint(1, 8))}
        if draw.random() < 0.2:
            sockets[draw.randrange(len(sockets))] = None  # type: ignore[assignment]
        nodes = draw.sample([*sockets, None], draw.randint(1, len(sockets) + 1))
        counts = {node: draw.randint(0, 4) for node in nodes}
        return draw.choice(list(Policy)), dict(sockets), counts

    def test_as_nova_does_for_pci_devices(self) -> None:
        draw = random.Random(20261130)
        for number in range(fuzz.examples(300, 3000)):
            policy, sockets, counts = self.drawn(draw)
            own = Affinity(
                policy, frozenset(draw.sample([*sockets], draw.randint(0, len(sockets)))), sockets
            )
            wanted = draw.randint(1, 6)
            choice = novas(own, counts, wanted)
            with self.subTest(number=number, affinity=own, counts=counts, wanted=wanted):
                # Nova leaves farther pools out where the nearest are enough.
                self.assertEqual(sum(choice.values()) >= wanted, own.room(counts) >= wanted)
                self.assertTrue(own.holds(choice))
                nearest = sum(n for node, n in counts.items() if own.distance(node) == 0)
                if nearest >= wanted and policy is not Policy.PREFERRED:
                    self.assertEqual({0}, {own.distance(node) for node in choice if counts[node]})

    def test_the_most_that_any_cells_reach(self) -> None:
        draw = random.Random(20261130)
        for number in range(fuzz.examples(300, 3000)):
            policy, sockets, counts = self.drawn(draw)
            nodes = draw.sample([*sockets], draw.randint(0, len(sockets)))
            for cells in range(1, len(sockets) + 1):
                rooms = (
                    Affinity(policy, frozenset(own), sockets).room(counts)
                    for own in itertools.combinations(nodes, cells)
                )
                with self.subTest(number=number, policy=policy, sockets=sockets, counts=counts):
                    room = affinity.most(policy, sockets, counts, nodes, cells)
                    self.assertEqual(max(rooms, default=0), room)


class AffinityTest(unittest.TestCase):
    def test_distances(self) -> None:
        nodes = (0, 1, 2, None)
        for policy, expected in (
            (Policy.REQUIRED, [0, 3, 3, 3]),
            (Policy.SOCKET, [0, 1, 3, 3]),
            (Policy.LEGACY, [0, 3, 3, 1]),
            (Policy.PREFERRED, [0, 2, 2, 1]),
        ):
            with self.subTest(policy=policy):
                own_affinity = Affinity(policy, frozenset({0}), HOST)
                self.assertEqual(expected, [own_affinity.distance(node) for node in nodes])
                self.assertTrue(Affinity(policy, frozenset(), HOST).holds(nodes))

    def test_cells_of_a_flavor(self) -> None:
        """As Nova has it"""
        for specs, expected in (
            ({}, 0),
            ({"hw:numa_nodes": "2"}, 2),
            ({"hw:cpu_policy": "dedicated"}, 1),
            ({"hw:cpu_policy": "dedicated", "hw:numa_nodes": "4"}, 4),
            ({"hw:cpu_policy": "mixed", "hw:cpu_dedicated_mask": "0-1"}, 1),
            ({"hw:cpu_policy": "shared"}, 0),
            ({"hw:mem_page_size": "large"}, 1),
            ({"hw:mem_page_size": "small"}, 1),
            ({"resources:PCPU": "4"}, 1),
        ):
            with self.subTest(specs):
                flavor = objects.Flavor(vcpus=4, memory_mb=1024, extra_specs=specs)
                numa_topology = hardware.numa_get_constraints(
                    flavor, objects.ImageMeta.from_dict({})
                )
                self.assertEqual(expected, len(numa_topology) if numa_topology else 0)
                self.assertEqual(expected, affinity.cells(specs))

    def test_policy(self) -> None:
        for stated, default, are_mediated, expected in (
            (None, None, False, Policy.LEGACY),
            (None, None, True, Policy.PREFERRED),
            (None, "required", True, Policy.REQUIRED),
            ("socket", "required", False, Policy.SOCKET),
        ):
            answer = affinity.policy(stated, default, are_mediated=are_mediated)
            self.assertIs(expected, answer)

    def test_shortage(self) -> None:
        free = collections.Counter([1, 0, 1, None])
        self.assertEqual(
            "its flavor wants 4 GPUs on NUMA node 1 and node 2, where its processors and memory "
            "are (hw:pci_numa_affinity_policy legacy), but 4 GPUs are free, 1 on node 0, 2 on node "
            "1, 1 on an unknown node",
            Affinity(Policy.LEGACY, frozenset({2, 1})).shortage(4, free),
        )
        self.assertEqual("0 GPUs are free", affinity.described({}))
