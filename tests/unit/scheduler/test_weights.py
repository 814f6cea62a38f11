# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import fixtures
from nova import objects, test
from nova.scheduler import host_manager
from nova.scheduler import weights as nova_weights
from oslo_utils import uuidutils

from nova_gpu.core.model import GPU
from nova_gpu.core.scheduling import stats
from nova_gpu.core.scheduling.stats import GroupStats
from nova_gpu.core.topology import topology
from nova_gpu.core.topology.topology import Islands
from nova_gpu.scheduler import host_reports, recent_choices
from nova_gpu.scheduler.weights import GPUWeigher
from tests.fixtures import cards
from tests.fixtures.cloud_gpus import request_spec

DOC = pathlib.Path(__file__).parents[3] / "doc/source/admin/scheduling.rst"
GROUP = GroupStats("10de:1091", "fermi", "lxc", 8, islands=Islands(numa=4, nvlink=2))


def free_gpus(first: int, second: int, *, linked: bool = False) -> list[GPU]:
    """So many on NUMA nodes 0 and 1; *linked*: all to all"""
    buses = [*range(first), *range(8, 8 + second)]
    names = {bus: f"0000:{bus:02x}:00.0" for bus in buses}
    return [
        cards.placed(name, bus // 8, [names[other] for other in buses if linked and other != bus])
        for bus, name in names.items()
    ]


def host(
    name: str, gpus: Sequence[GPU] | None, aggregate: Mapping[str, str] | None = None
) -> host_manager.HostState:
    state = host_manager.HostState(name, name, None)
    state.uuid = uuidutils.generate_uuid()
    state.stats = {}
    state.vcpus_total, state.cpu_allocation_ratio = 100, 1.0
    state.total_usable_ram_mb = state.free_ram_mb = 51200
    state.ram_allocation_ratio = 1.0
    if gpus is not None:
        report = stats.Report(stats.HostStats("LXC", (GROUP,)), (topology.cells(gpus),))
        state.stats["nova_gpu"] = stats.dumps(report)
    if aggregate:
        state.aggregates = [objects.Aggregate(name="a", metadata=dict(aggregate))]
    return state


HOSTS = {"A": (4, 4), "B": (3, 4), "C": (0, 2), "D": (1, 4), "E": (2, 2), "F": (1, 1), "G": (2, 0)}
NUMA = {"gpu:topology": "numa", "gpu:topology_policy": "preferred"}

# What the documentation shows: extra specs, and the hosts that there are.
EXAMPLES = (
    ({"gpus": "1"}, "ABCD"),
    ({"gpus": "4"}, "ABCDE"),
    ({"gpus": "1", "gpu:distribution": "spread"}, "ABCD"),
    ({"gpus": "2"}, "FG"),
    ({"gpus": "2"} | NUMA, "FG"),
    ({}, "XZCA"),
)


def weighed(hosts: Mapping[str, host_manager.HostState]) -> list[nova_weights.WeighedHost]:
    return [nova_weights.WeighedHost(state, 0.0) for state in hosts.values()]


class GPUWeigherTest(test.NoDBTestCase):
    def setUp(self) -> None:
        super().setUp()
        host_reports.forget()

    def weighed(
        self, hosts: Sequence[host_manager.HostState], specs: Mapping[str, str]
    ) -> list[tuple[str, float]]:
        """As Nova weighs them, the best first"""
        weighed_hosts = nova_weights.HostWeightHandler().get_weighed_objects(
            [GPUWeigher()], hosts, request_spec(specs)
        )
        return [(host.obj.host, host.weight) for host in weighed_hosts]

    def order(self, hosts: Sequence[host_manager.HostState], **specs: str) -> list[str]:
        return [name for name, _ in self.weighed(hosts, specs)]

    def named(self, name: str) -> host_manager.HostState:
        if name in "XZ":
            return host(name, None if name == "X" else [])
        return host(name, free_gpus(*HOSTS[name], linked=name == "F"))

    def test_the_examples_of_the_documentation(self) -> None:
        text = DOC.read_text()
        for specs, names in EXAMPLES:
            lines = ["    host  free  weight"]
            for name, weight in self.weighed([self.named(name) for name in names], specs):
                free = {"X": "-", "Z": "0+0"}.get(name) or "+".join(map(str, HOSTS[name]))
                lines.append(f"    {name}     {free:<5}{weight:7.0f}")
            with self.subTest(specs=specs):
                self.assertIn("\n".join(lines) + "\n\n", text)

    def test_a_host_that_says_nothing_comes_last(self) -> None:
        old = host("old", None)
        old.stats["nova_gpu"] = stats.dumps(stats.Report(stats.HostStats("LXC", (GROUP,))))
        broken, without = host("broken", None), host("without", None)
        broken.stats["nova_gpu"] = "{"
        full = host("full", [])
        weights = dict(self.weighed([broken, without, old, full, self.named("A")], {"gpus": "1"}))
        self.assertEqual(
            {"A": 1000.0, "old": 500.0, "full": 500.0, "broken": 0.0, "without": 0.0}, weights
        )

    def test_without_gpus_where_free_gpus_need_all(self) -> None:
        """One host after another is broken up, until it is known that GPUs need less."""
        weigher, hosts = GPUWeigher(), {name: self.named("A") for name in ("empty", "used", "full")}
        for name, vcpus in (("used", 20), ("full", 100)):
            hosts[name].vcpus_used = vcpus
        spec = request_spec({})
        weights = dict(zip(hosts, weigher.weigh_objects(weighed(hosts), spec), strict=True))
        self.assertEqual(["used", "empty", "full"], sorted(hosts, key=weights.__getitem__)[::-1])
        spec = request_spec({"gpus": "4"})
        spec.flavor.vcpus, spec.flavor.memory_mb = 24, 4 * 4096
        weigher.weigh_objects(weighed({"elsewhere": self.named("B")}), spec)
        weights = dict(
            zip(hosts, weigher.weigh_objects(weighed(hosts), request_spec({})), strict=True)
        )
        self.assertEqual(["empty", "used", "full"], sorted(hosts, key=weights.__getitem__)[::-1])

    def test_instances_on_their_way_count(self) -> None:
        """Also those without GPUs, once, until the host's record has them."""
        weigher, hosts = GPUWeigher(), {name: self.named("A") for name in ("one", "other")}
        hosts["one"].vcpus_used = 20
        spec = request_spec({})
        spec.instance_uuid = uuidutils.generate_uuid()
        for _ in range(2):  # again for its alternates
            weigher.weigh_objects(weighed(hosts), spec)
        loads = {name: weigher._loads.unreported(state) for name, state in hosts.items()}
        self.assertEqual({"one": (spec.vcpus, spec.memory_mb), "other": (0, 0)}, loads)
        hosts["one"].vcpus_used += spec.vcpus
        hosts["one"].free_ram_mb -= spec.memory_mb
        self.assertEqual((0, 0), weigher._loads.unreported(hosts["one"]))

    def test_an_instance_that_never_comes_is_forgotten(self) -> None:
        """Also where others follow it all the time."""
        clock = self.useFixture(fixtures.MockPatchObject(recent_choices.time, "monotonic")).mock
        loads, state = recent_choices.Loads(), self.named("A")
        for now, vcpus in ((0.0, 7), (6.0, 1), (12.0, 2)):
            clock.return_value = now
            spec = request_spec({})
            spec.instance_uuid, spec.flavor.vcpus = uuidutils.generate_uuid(), vcpus
            loads.add(state, spec)
        self.assertEqual(3, loads.unreported(state)[0])

    def test_multipliers(self) -> None:
        self.flags(gpu_weight_multiplier=5.0, gpu_host_weight_multiplier=2.0, group="gpu")
        metadata = {"gpu_weight_multiplier": "7", "gpu_host_weight_multiplier": "-3"}
        for specs, expected in (({"gpus": "8"}, (5.0, 7.0)), ({}, (2.0, -3.0))):
            gpus = free_gpus(4, 4) if specs else None
            hosts = [host("plain", gpus), host("odd", gpus, metadata)]
            with self.subTest(specs=specs):
                weights = dict(self.weighed([*hosts, self.named("Z")], specs))
                self.assertEqual(expected, (weights["plain"], weights["odd"]))

    def test_vgpus(self) -> None:
        hosts = []
        for name, one, other in (("A", 9, 4), ("B", 2, 1), ("C", 0, 7), ("D", 1, 0)):
            state = host(name, None)
            free = (("nvidia-63", "GRID P4-1Q", one), ("nvidia-66", None, other))
            divided = stats.Divided(2, min(2, one + other), free)
            report = stats.Report(stats.HostStats("QEMU", ()), (), divided=divided)
            state.stats["nova_gpu"] = stats.dumps(report)
            hosts.append(state)
        hosts.append(host("Z", None))
        small, two = {"vgpus": "1", "vgpu_type": "GRID P4-1Q"}, {"vgpus": "2"}
        packed = dict(self.weighed(hosts, small))
        self.assertEqual(["D", "B", "A"], sorted(packed, key=lambda n: -packed[n])[:3])
        self.assertEqual(0.0, packed["Z"])
        self.assertEqual(["B", "C", "A"], self.order(hosts, **two)[:3])
        self.flags(distribution="spread", group="gpu")
        self.assertEqual(["A", "B", "D"], self.order(hosts, **small)[:3])
        self.assertEqual(["A", "C", "B"], self.order(hosts, **two)[:3])
        # To others a host is the worse the more cards have room.
        self.assertEqual(["Z", "D"], self.order(hosts)[:2])
