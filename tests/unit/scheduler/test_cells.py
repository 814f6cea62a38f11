# SPDX-License-Identifier: Apache-2.0
"""Guests with pinned processors: hosts that can put these and the GPUs on one NUMA node."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence

from nova import exception as nova_exception
from nova import objects, test
from nova.scheduler import host_manager
from nova.scheduler import weights as nova_weights
from nova.virt import hardware
from oslo_utils import uuidutils
from oslo_utils.fixture import uuidsentinel as uuids

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import request
from nova_gpu.core.scheduling import rank, stats
from nova_gpu.core.scheduling.stats import GroupStats
from nova_gpu.scheduler import host_reports
from nova_gpu.scheduler.cells import wanted
from nova_gpu.scheduler.filters import GPUFilter
from nova_gpu.scheduler.recent_choices import Choice
from nova_gpu.scheduler.weights import GPUWeigher
from tests.fixtures.cloud_gpus import PlacementWithGPUs, request_spec

HOPPER = GroupStats("10de:2330", "hopper", "pci", 8)
POLICY = "hw:pci_numa_affinity_policy"
# Of each node: its GPUs, and how many of these are free
Nodes = Mapping[int, tuple[int, int]]
EVEN: Nodes = {0: (4, 4), 1: (4, 4)}
HALF: Nodes = {0: (4, 2), 1: (4, 2)}
UNKNOWN: Nodes = {-1: (8, 8)}
_CPUS = 8  # of a node; one socket has two nodes


def cell(node: int, pinned: int) -> objects.NUMACell:
    """A node of which so many processors are somebody's."""
    cpus = set(range(node * _CPUS, (node + 1) * _CPUS))
    return objects.NUMACell(
        id=node,
        cpuset=set(),
        pcpuset=cpus,
        memory=1 << 20,
        cpu_usage=pinned,
        memory_usage=0,
        pinned_cpus=set(sorted(cpus)[:pinned]),
        siblings=[{cpu} for cpu in cpus],
        mempages=[objects.NUMAPagesTopology(size_kb=4, total=1 << 28, used=0)],
        socket=node // 2,
    )


class CellsTest(test.NoDBTestCase):
    USES_DB_SELF = True  # Placement's

    def setUp(self) -> None:
        super().setUp()
        self.placement = self.useFixture(PlacementWithGPUs())

    def host(
        self,
        name: str,
        nodes: Nodes | None,
        pinned: Sequence[int] = (0, 0),
        used: int | None = None,
    ) -> host_manager.HostState:
        """:param nodes: ``None``: of a release that does not report them
        :param pinned: how many processors of each node are somebody's
        :param used: how many GPUs Placement counts as in use, by default as reported
        """
        state = host_manager.HostState(name, name, uuids.cell)
        state.uuid = self.placement.add_host(name)
        rows = [(node, *counts) for node, counts in (nodes or {}).items()]
        free = sum(left for *_, left in rows) if rows else 8
        busy = 8 - free if used is None else used
        self.placement.add_group(
            state.uuid, 8, "hopper", hypervisor="QEMU", product_id="2330", used=busy
        )
        state.allocation_candidates = [{"allocations": {"": {"resources": {"PGPU": 8}}}}]
        state.hypervisor_type = "QEMU"
        report = stats.Report(
            stats.HostStats("QEMU", (HOPPER,)),
            (((-1, 0, -1, -1, free),) if free else (),),
            nodes=(tuple(rows),) if nodes else None,
        )
        state.stats = {names.STATS: stats.dumps(report)}
        topology = objects.NUMATopology(cells=[cell(*item) for item in enumerate(pinned)])
        state.numa_topology = topology
        return state

    def spec(self, gpus: int, policy: str | None = None, cells: int = 1) -> objects.RequestSpec:
        words = {"gpus": str(gpus), "hw:cpu_policy": "dedicated", "hw:numa_nodes": str(cells)}
        spec = request_spec(words | ({POLICY: policy} if policy else {}), vcpus=2 * cells)
        spec.num_instances = 1
        spec.numa_topology = hardware.numa_get_constraints(spec.flavor, spec.image)
        return spec

    def passing(self, spec: objects.RequestSpec, *hosts: host_manager.HostState) -> list[str]:
        return sorted(state.host for state in GPUFilter().filter_all(hosts, spec))

    def refused(self, spec: objects.RequestSpec, *hosts: host_manager.HostState) -> str:
        return str(self.assertRaises(nova_exception.NoValidHost, self.passing, spec, *hosts))

    def test_what_a_host_can_do_at_all(self) -> None:
        four = (0, 0, 0, 0)
        spread: Nodes = {node: (2, 2) for node in range(4)}
        for gpus, policy, cells, nodes, pinned, passes in (
            (4, None, 1, EVEN, (0, 0), True),
            (5, None, 1, EVEN, (0, 0), False),
            (5, "preferred", 1, EVEN, (0, 0), True),
            (8, "required", 2, EVEN, (0, 0), True),
            (4, None, 1, {0: (4, 4)}, (7, 0), False),  # no processors on the node of the GPUs
            (4, None, 1, {0: (4, 4)}, (0, 7), True),
            (8, "legacy", 1, UNKNOWN, (0, 0), True),
            (1, "required", 1, UNKNOWN, (0, 0), False),
            (1, "required", 1, None, (0, 0), True),  # an older report
            (4, "socket", 1, spread, four, True),
            (5, "socket", 1, spread, four, False),
            (3, "required", 1, spread, four, False),
        ):
            with self.subTest(gpus=gpus, policy=policy, nodes=nodes, pinned=pinned):
                state = self.host(f"{gpus}{policy}{cells}{nodes}{pinned}", nodes, pinned)
                spec = self.spec(gpus, policy, cells)
                if passes:
                    self.assertEqual([state.host], self.passing(spec, state))
                else:
                    self.assertIn("asked for on one NUMA node", self.refused(spec, state))
        self.flags(pci_numa_affinity_policy="preferred", group="gpu")
        self.assertEqual(["option"], self.passing(self.spec(5), self.host("option", EVEN)))
        imageless = self.spec(4)
        imageless.image = None
        self.assertEqual(["volume"], self.passing(imageless, self.host("volume", EVEN)))
        without = request_spec({"gpus": "8"})
        without.numa_topology = None
        self.assertEqual(["plain"], self.passing(without, self.host("plain", EVEN)))

    def test_hosts_with_more_places_than_are_tried_pass(self) -> None:
        """Nodes that take no cell are no places."""
        far, full = self.host("far", {23: (1, 1)}, (0,) * 24, used=0), (_CPUS,) * 12
        self.assertEqual(["far"], self.passing(self.spec(1, cells=4), far))
        few = self.host("few", {23: (1, 1)}, (*full, *full[3:], 0, 0, 0), used=0)
        self.assertIn("1 GPU asked for on 4 NUMA nodes", self.refused(self.spec(1, cells=4), few))

    def test_reasons(self) -> None:
        begin = "3 GPUs asked for on one NUMA node with its processors and memory ("
        even, half = self.host("even", EVEN, (7, 7)), self.host("half", HALF)
        few = self.host("few", {0: (2, 2), 1: (2, 2)})
        for hosts, text in (
            ((even,), f"{begin}{POLICY}=legacy): processors and memory are free on no such node"),
            ((few,), f"{begin}{POLICY}=legacy): the most there in one host is 2"),
            (
                (half,),
                f"{begin}{POLICY}=legacy): in the best host 4 GPUs are free, 2 on node 0, 2 on",
            ),
        ):
            self.assertIn(text, self.refused(self.spec(3), *hosts))
        # Placement counts fewer in use than the report: one was given back since.
        self.assertEqual(["late"], self.passing(self.spec(3), self.host("late", HALF, used=3)))
        self.assertEqual(["full"], self.passing(self.spec(3), few, self.host("full", EVEN)))
        several = self.spec(3)
        several.num_instances = 2  # left to the claims
        self.assertEqual(["half"], self.passing(several, half))

    def test_those_with_gpus_free_beside_the_cells_come_first(self) -> None:
        hosts = [
            self.host("a", HALF),
            self.host("b", EVEN, (7, 0)),
            self.host("c", {0: (4, 4), 1: (4, 0)}, (7, 0)),  # GPUs here, processors there
            self.host("d", None),
        ]
        for policy, expected in ((None, "bd"), ("preferred", "b")):
            spec, handler = self.spec(3, policy), nova_weights.HostWeightHandler()
            weighed_hosts = handler.get_weighed_objects([GPUWeigher()], hosts, spec)
            with self.subTest(policy):
                self.assertEqual("b", weighed_hosts[0].obj.host)
                self.assertEqual(
                    set(expected), {host.obj.host for host in weighed_hosts[: len(expected)]}
                )

    def test_a_claim_that_is_under_way_takes_the_emptier_node(self) -> None:
        """Nova puts the first guest's cell there, so that the second one fits on no node."""
        hosts = [self.host("packed", {0: (4, 3), 1: (4, 4)}, (6, 5)), self.host("free", EVEN)]
        weigher, host_names = GPUWeigher(), list[str]()
        for gpus in (1, 4):
            spec = self.spec(gpus)
            spec.instance_uuid = uuidutils.generate_uuid()
            handler = nova_weights.HostWeightHandler()
            best, *_ = handler.get_weighed_objects([weigher], hosts, spec)
            host_names.append(best.obj.host)
        self.assertEqual(["packed", "free"], host_names)

    def test_cells_of_one_request_count_once(self) -> None:
        """Nova counts those of the instances so far in the host state."""
        hosts = [self.host(name, EVEN, (4, 4)) for name in "ab"]
        weigher, host_names, spec = GPUWeigher(), list[str](), self.spec(1)
        spec.num_instances, spec.pci_requests = 4, None
        handler = nova_weights.HostWeightHandler()
        for _ in range(4):
            spec.instance_uuid = uuidutils.generate_uuid()
            best, *_ = handler.get_weighed_objects([weigher], hosts, spec)
            best.obj.consume_from_request(spec)
            host_names.append(best.obj.host)
        self.assertEqual(1, len(set(host_names)))

    def test_a_claim_of_many_cells_is_not_predicted(self) -> None:
        """Where they no longer fit, all orders of eight cells on twelve nodes would be tried."""
        gpu_request = request.of({"gpus": "4"}).whole
        assert gpu_request is not None
        host = self.host("full", {0: (4, 4)}, (0,) * 5 + (_CPUS,) * 7)
        report = host_reports.report(host)
        topology = self.spec(4, cells=8).numa_topology
        sent = Choice(0.0, uuids.sent, host.uuid, gpu_request, report, 0, cells=topology)
        guest = wanted(self.spec(4), gpu_request)
        assert guest is not None and report is not None
        began = time.process_time()
        self.assertEqual(2, guest.distance(host, report, [sent]))
        self.assertLess(time.process_time() - began, 2)

    def test_recent_choices_count(self) -> None:
        """The GPUs that a report does not show yet are taken from one node."""
        (nodes,) = (tuple((node, *counts) for node, counts in EVEN.items()),)
        report = stats.Report(
            stats.HostStats("QEMU", (HOPPER,)), (((-1, 0, -1, -1, 8),),), nodes=(nodes,)
        )
        for gpus, cells, left in (
            *((1, (), (3, 4)), (4, (), (0, 4)), (6, (), (0, 2))),
            *((1, (1,), (4, 3)), (6, (1,), (2, 0))),
        ):
            gpu_request = request.of({"gpus": str(gpus)}).whole
            assert gpu_request is not None
            (after,) = rank.left(report, gpu_request, frozenset(cells)).nodes or ()
            self.assertEqual(left, tuple(free for *_, free in after))
        wrong = dataclasses.replace(report, nodes=((), ()))
        self.assertRaises(exception.InvalidStats, stats.loads, stats.dumps(wrong))
