# SPDX-License-Identifier: Apache-2.0
"""How full a fleet gets with pinned guests that have GPUs, and how many need a second host.

python -m benchmarks.pinned [--json] [--hosts N] [--filled PERCENT] [--schedulers N ...]
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import heapq
import math
import pathlib
import random
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

from nova import exception as nova_exception
from nova import objects
from nova.compute import provider_tree, resource_tracker
from nova.pci.stats import PciDeviceStats
from nova.scheduler import filters as nova_filters
from nova.scheduler import host_manager
from nova.scheduler import weights as nova_weights
from nova.scheduler.filters import numa_topology_filter, pci_passthrough_filter
from nova.virt import hardware

from benchmarks import host_states, packing, report
from nova_gpu.conf import CONF
from nova_gpu.core import names
from nova_gpu.core.model import DeliveryMode
from nova_gpu.core.scheduling import stats
from nova_gpu.host.roots import Roots
from nova_gpu.scheduler import filters, placement, recent_choices
from nova_gpu.scheduler.weights import GPUWeigher
from nova_gpu.virt.card_sets import Sets
from nova_gpu.virt.delivery.deliveries import Deliveries
from nova_gpu.virt.health.failed_starts import FailedStarts
from nova_gpu.virt.inventory import numa_cells
from nova_gpu.virt.inventory.card_inventory import CardInventory
from nova_gpu.virt.inventory.exchange import Exchange, Holdings
from nova_gpu.virt.inventory.joined_cards import JoinedCards
from nova_gpu.virt.inventory.neighbours import Neighbours
from nova_gpu.virt.inventory.tracker import Tracker
from nova_gpu.virt.usage.ledger import Ledger

NOTES = (
    "Hosts of 8 GPUs, 18 processors and 2 TiB, half of each on either NUMA node. A guest has two",
    "pinned processors and 192 GiB for each GPU, its GPUs by Nova's default policy (legacy), and",
    "one cell for 1, 2 or 4 GPUs or two for 8; as many GPUs of each size. In use: until the first",
    "guest is refused, of what the best packing of the same guests reaches. Ours: GPUFilter and",
    "GPUWeigher with Nova's filters and weighers; on the host Nova's fit of the cells, our pool",
    "in Nova's tracker, and the choice before a start. Other: the same cards by an alias.",
    "Second host: a guest every two seconds until that part of the GPUs is in use. The host",
    "claims up to 3 s after the scheduler, prepares up to 1 s after that, as Nova does before it",
    "makes volumes, and starts the guest up to 10 s later. Counted are guests that it refuses, or",
    "that lost their claim in Placement.",
)

NODES, CPUS, MEMORY_MIB = 2, 9, 1 << 20  # of a host; of a node
_CPUS_OF_GPU, _MIB_OF_GPU = 2, 192 << 10
_ON_ONE = host_states.GPUS // NODES
_ATTEMPTS = 3  # [scheduler]max_attempts
_CLAIMED_S, _PREPARED_S, _STARTED_S, _PERIOD_S = 3.0, 1.0, 10.0, 60.0
_LIMITS = objects.NUMATopologyLimits(cpu_allocation_ratio=1.0, ram_allocation_ratio=1.0)


@dataclasses.dataclass
class Outcome:
    """The GPUs in use, and how many guests started, of these on a second host, and were refused."""

    gpus: int = 0
    starts: int = 0
    second: int = 0
    refused: int = 0


class Host:
    """A host of stock Nova, whose record in the database is ``state``."""

    def __init__(self, state: host_manager.HostState) -> None:
        self.state = state
        self.used = 0  # in Placement
        state.numa_topology = _topology()
        state.pci_stats = PciDeviceStats(state.numa_topology, self._pools(state))

    def _pools(self, state: host_manager.HostState) -> objects.PciDevicePoolList:
        pools = []
        for node in range(NODES):
            pools.append(copy.deepcopy(state.pci_stats.pools[0]) | {"numa_node": node})
            pools[-1]["count"] = _ON_ONE
        return objects.PciDevicePoolList(
            objects=[objects.PciDevicePool.from_dict(pool) for pool in pools]
        )

    def claim(self, spec: objects.RequestSpec, count: int) -> Any:
        """Return what the instance has then, ``None`` if the host refuses it."""
        fitted = hardware.numa_fit_instance_to_host(
            self.state.numa_topology,
            spec.numa_topology.obj_clone(),
            provider_mapping={},
            limits=_LIMITS,
            pci_requests=spec.pci_requests.requests,
            pci_stats=self.state.pci_stats,
        )
        if fitted is None:
            return None
        self.state.consume_from_request(spec)
        self.state.stats["num_instances"] = str(self.state.num_instances)
        return spec

    def prepare(self, claimed: Any) -> None:
        """Do what the driver does in ``prepare_for_spawn``."""

    def start(self, claimed: Any) -> bool:
        return True

    def period(self) -> None:
        pass


class GPUHost(Host):
    """A host of nova-gpu: its pool in Nova's tracker, and the choice before a start."""

    def __init__(self, state: host_manager.HostState, folder: pathlib.Path) -> None:
        super().__init__(state)
        roots, ledger = Roots(folder, folder, folder), Ledger()
        self._rt = resource_tracker.ResourceTracker(state.host, mock.Mock(), mock.Mock())
        self._rt._update = lambda *_: self.period()
        tree = self._rt.provider_tree = provider_tree.ProviderTree()
        tree.new_root(state.nodename, state.uuid)
        self._node = self._rt.compute_nodes[state.nodename] = objects.ComputeNode(
            cpu_allocation_ratio=1.0,
            ram_allocation_ratio=1.0,
            numa_topology=state.numa_topology._to_json(),
        )
        tracker = Tracker(lambda: self._rt)
        neighbours = Neighbours(tracker, roots)
        self._cards = CardInventory(
            ledger,
            Deliveries(roots, lambda _: None, ledger),
            JoinedCards(Sets(), roots, serves=True),
            neighbours,
            FailedStarts(folder / state.host, roots),
        )
        (group,) = host_states.offer().values()
        self._cards.take_in(group.gpus.values(), DeliveryMode.PCI, {})
        self._cards.publish(tree, state.nodename, "QEMU")
        (self._provider,) = self._cards.provider_uuids.values()
        assigned: Any = SimpleNamespace(nodename=lambda: state.nodename)
        self._exchange = Exchange(assigned, tracker, neighbours)
        self.period()

    def _pools(self, state: host_manager.HostState) -> objects.PciDevicePoolList:
        return objects.PciDevicePoolList(objects=[])

    def claim(self, spec: objects.RequestSpec, count: int) -> Any:
        try:
            resources = self._rt._claim_resources(
                {
                    self.state.uuid: {"resources": {"PCPU": count * _CPUS_OF_GPU}},
                    self._provider: {"resources": {names.RESOURCE_CLASS: count}},
                }
            )
        except nova_exception.ComputeResourcesUnavailable:
            return None
        if super().claim(spec, count) is None:
            self._rt._release_assigned_resources(resources)
            return None
        self._node.numa_topology = self.state.numa_topology._to_json()
        self.period()
        instance = objects.Instance(
            uuid=spec.instance_uuid,
            host=CONF.host,
            flavor=spec.flavor,
            image_ref="",
            system_metadata={},
            resources=resources,
            numa_topology=spec.numa_topology,
            migration_context=None,
            pci_requests=None,
        )
        _DATABASE[instance.uuid] = instance
        self._rt.tracked_instances.add(instance.uuid)
        return instance

    def prepare(self, claimed: Any) -> None:
        self._exchange.make(claimed, moves_cells=True, waits=True)

    def start(self, claimed: Any) -> bool:
        self._exchange.make(claimed, moves_cells=True)
        held: Holdings = {self._cards: self._cards.held(claimed.resources)}
        if self._exchange.remote(claimed, held) is None:
            return True
        self._rt._release_assigned_resources(claimed.resources)
        self._rt.tracked_instances.discard(claimed.uuid)
        usage = hardware.numa_usage_from_instance_numa(
            numa_cells.host(self._node), claimed.numa_topology, free=True
        )
        self._node.numa_topology = usage._to_json()
        self.period()
        return False

    def period(self) -> None:
        self.state.numa_topology = numa_cells.host(self._node)
        text = self._cards.report("QEMU", stats.NOTHING, stats.UNDIVIDED)
        self.state.stats = {**self.state.stats, names.STATS: text}


_DATABASE: dict[str, objects.Instance] = {}


class Fleet:
    """Hosts, and what schedulers do with a request."""

    def __init__(self, hosts: int, folder: pathlib.Path | None) -> None:
        """:param folder: a folder for what hosts of nova-gpu note; ``None`` for stock Nova"""
        self.ours = folder is not None
        states = host_states.states(hosts, all_free=True)
        made = (GPUHost(state, folder) if folder else Host(state) for state in states)
        self.hosts = {host.state.uuid: host for host in made}
        kinds = [
            numa_topology_filter.NUMATopologyFilter,
            pci_passthrough_filter.PciPassthroughFilter,
        ]
        self._filters = [kind() for kind in [*kinds, *([filters.GPUFilter] if self.ours else [])]]
        self._weighers = [kind() for kind in nova_weights.all_weighers()]

    def spec(self, count: int, chance: random.Random) -> objects.RequestSpec:
        words = {"hw:cpu_policy": "dedicated", "hw:numa_nodes": str(math.ceil(count / _ON_ONE))}
        if self.ours:
            spec = host_states.spec({"gpus": str(count), **words})
        else:
            spec = host_states.alias_spec()
            spec.flavor.extra_specs = words
            spec.pci_requests.requests[0].count = count
        spec.flavor.vcpus, spec.flavor.memory_mb = count * _CPUS_OF_GPU, count * _MIB_OF_GPU
        spec.instance_uuid = str(uuid.UUID(int=chance.getrandbits(128)))
        spec.numa_topology = hardware.numa_get_constraints(spec.flavor, spec.image)
        return spec

    def sorted(
        self, spec: objects.RequestSpec, count: int, weigher: GPUWeigher
    ) -> list[host_manager.HostState]:
        """Return the hosts that pass, the best first."""
        there = []
        for host in self.hosts.values():
            # Placement counts the pinned processors of both, and our GPUs.
            if host.used + count <= host_states.GPUS:
                resources = {names.RESOURCE_CLASS: count} if self.ours else {}
                candidate = {
                    "allocations": {host.state.uuid: {"resources": resources}},
                    "mappings": {},
                }
                host.state.allocation_candidates = [candidate]
                there.append(host.state)
        handler = nova_filters.HostFilterHandler()
        try:
            passing = handler.get_filtered_objects(self._filters, there, spec)
        except nova_exception.NoValidHost:
            return []
        weighers = [*self._weighers, *([weigher] if self.ours else [])]
        weighed = nova_weights.HostWeightHandler().get_weighed_objects(
            weighers, passing or [], spec
        )
        return [pair.obj for pair in weighed]

    def build(
        self, count: int, chance: random.Random, weigher: GPUWeigher, outcome: Outcome
    ) -> Iterator[float]:
        """Build an instance; yield the seconds until its next step."""
        spec = self.spec(count, chance)
        wanted = spec.numa_topology
        tried = self.sorted(spec, count, weigher)[:_ATTEMPTS]
        for number, state in enumerate(tried):
            host = self.hosts[state.uuid]
            if host.used + count > host_states.GPUS:
                continue
            host.used += count
            yield chance.uniform(0, _CLAIMED_S)
            spec.numa_topology = wanted.obj_clone()
            if (claimed := host.claim(spec, count)) is not None:
                yield chance.uniform(0, _PREPARED_S)
                host.prepare(claimed)
                yield chance.uniform(0, _STARTED_S)
                if host.start(claimed):
                    outcome.starts += 1
                    outcome.gpus += count
                    outcome.second += number > 0
                    return
            host.used -= count
        outcome.refused += 1


def _topology() -> objects.NUMATopology:
    made = []
    for node in range(NODES):
        cpus = set(range(node * CPUS, (node + 1) * CPUS))
        made.append(
            objects.NUMACell(
                id=node,
                socket=node,
                cpuset=set(),
                pcpuset=cpus,
                siblings=[{cpu} for cpu in cpus],
                pinned_cpus=set(),
                cpu_usage=0,
                memory=MEMORY_MIB,
                memory_usage=0,
                mempages=[objects.NUMAPagesTopology(size_kb=4, total=MEMORY_MIB << 8, used=0)],
            )
        )
    return objects.NUMATopology(cells=made)


def best(sizes: Sequence[int], hosts: int) -> int:
    """Return how many GPUs the first of *sizes* have until the best packing must refuse one."""
    used = 0
    for count in sizes:
        # Each size is twice the one before, so that smaller ones fill the rest of any node or host.
        if used + count > hosts * host_states.GPUS:
            break
        used += count
    return used


@contextlib.contextmanager
def _cloud(clock: packing.Clock, fleet: list[Fleet]) -> Iterator[pathlib.Path]:
    """Let nova-gpu run without a database, Placement and a notification bus."""

    def get_by_uuid(context: Any, uuid: str, expected_attrs: Sequence[str]) -> objects.Instance:
        return copy.copy(_DATABASE[uuid])

    def offers(context: Any, request: Any, part: Any, root: str) -> Mapping[str, Any]:
        return {root: SimpleNamespace(free=host_states.GPUS - fleet[0].hosts[root].used)}

    with contextlib.ExitStack() as stack:
        _DATABASE.clear()
        for owner, name, substitute in (
            (recent_choices, "time", clock),
            (objects.Instance, "get_by_uuid", get_by_uuid),
            (objects.Instance, "save", lambda instance: None),
            (placement, "offers_of_host", offers),
            (filters, "refusal", lambda *_: nova_exception.NoValidHost(reason="")),
        ):
            stack.enter_context(mock.patch.object(owner, name, substitute))
        yield pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))


def fill(
    hosts: int,
    *,
    ours: bool,
    schedulers: int = 1,
    seconds: float = _PERIOD_S,
    share: float = 1.0,
    seed: int = 20261130,
) -> tuple[Outcome, int]:
    """Build a guest every so many *seconds* until one is refused or a *share* of GPUs is in use.

    Return the outcome, and :func:`best` of the same guests.
    """
    chance, drawn, clock = random.Random(seed), random.Random(seed), packing.Clock()
    outcome, total, fleets = Outcome(), hosts * host_states.GPUS, list[Fleet]()
    sizes = [drawn.choice(packing.STREAMS["cards"]) for _ in range(total)]
    with _cloud(clock, fleets) as folder:
        fleet = Fleet(hosts, folder if ours else None)
        fleets.append(fleet)
        weighers = [GPUWeigher() for _ in range(schedulers)]
        steps: list[tuple[float, int, Iterator[float]]] = []
        for number, host in enumerate(fleet.hosts.values()):
            steps.append((number * _PERIOD_S / hosts, number, _periods(host)))
        heapq.heapify(steps)
        wanted = 0
        for number, count in enumerate(sizes):
            if (outcome.refused and share == 1) or wanted >= share * total:
                break
            wanted += count
            build = fleet.build(count, chance, chance.choice(weighers), outcome)
            heapq.heappush(steps, (clock.now, hosts + number, build))
            _run(steps, clock, clock.now + seconds)
        _run(steps, clock, clock.now + _PERIOD_S)
    return outcome, best(sizes, hosts)


def _periods(host: Host) -> Iterator[float]:
    while True:
        host.period()
        yield _PERIOD_S


def _run(
    steps: list[tuple[float, int, Iterator[float]]], clock: packing.Clock, until: float
) -> None:
    """Take all *steps* in the order of their times, as far as these are before *until*."""
    while steps[0][0] < until:
        clock.now, number, rest = heapq.heappop(steps)
        if (wait := next(rest, None)) is not None:
            heapq.heappush(steps, (clock.now + wait, number, rest))
    clock.now = until


def rows(hosts: int, filled: int, schedulers: Sequence[int]) -> Iterator[report.Row]:
    (ours, most), (other, _) = (fill(hosts, ours=ours) for ours in (True, False))
    name = f"{hosts} hosts: in use at the first refusal, of {most}"
    yield report.Row(name, ours.gpus, other.gpus, "GPUs")
    for several in schedulers:
        args: dict[str, Any] = {"schedulers": several, "seconds": 2.0, "share": filled / 100}
        ours, other = (fill(hosts, ours=ours, **args)[0] for ours in (True, False))
        name = f"{hosts} hosts filled to {filled} %, {several} schedulers"
        yield report.Row(f"{name}: second host, of {ours.starts}", ours.second, other.second, "")
        yield report.Row(f"{name}: refused", ours.refused, other.refused, "")


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--hosts", type=int, default=100, metavar="N")
    parser.add_argument("--filled", type=int, default=80, metavar="PERCENT")
    parser.add_argument("--schedulers", type=int, nargs="*", default=(1, 2), metavar="N")
    options = parser.parse_args()
    CONF([], project="nova", default_config_files=[])
    table = rows(options.hosts, options.filled, options.schedulers)
    report.show(table, as_json=options.json, notes=NOTES)


if __name__ == "__main__":
    main()
