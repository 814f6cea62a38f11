# SPDX-License-Identifier: Apache-2.0
"""What remains for large instances when half of a cloud's GPUs are in use, with Nova's own choice.

python -m benchmarks.packing [--json] [--hosts N ...] [--streams NAME ...] [--schedulers N ...]
"""

from __future__ import annotations

import copy
import dataclasses
import math
import random
import uuid
from collections.abc import Iterator, Sequence
from unittest import mock

from nova import objects
from nova.scheduler import host_manager, weights
from oslo_utils import timeutils

from benchmarks import host_states, report
from nova_gpu.conf import CONF
from nova_gpu.core import names
from nova_gpu.core.scheduling import stats
from nova_gpu.core.scheduling.stats import Divided, HostStats, Report
from nova_gpu.scheduler import filters, recent_choices
from nova_gpu.scheduler.weights import GPUWeigher

NOTES = (
    "Hosts of 8 GPUs on two NUMA nodes, 128 vCPUs and 2 TiB. Instances come until half of all GPUs",
    "are in use; the figure is on how many hosts an instance with 8 GPUs, 96 vCPUs and 1.5 TiB",
    "then fits, and 'of N' on how many it would if every instance were moved to be packed best.",
    "Ours: all of Nova's weighers and GPUWeigher; other: all of Nova's, with the same cards as PCI",
    "devices, or the same vGPUs without a type. cards: 1, 2, 4 and 8 GPUs, as many GPUs of each.",
    "others: the same, and three instances without GPUs for each host, of which four fit beside",
    "8 GPUs. vgpus: half a card each, and the figure is for 8 whole cards. one: each comes 5 s",
    "after the one before. 50: so many at once, once a minute. multi: 8 in a request, with up to 2",
    "GPUs each, a request every 5 s. A host's record is new when the host claims, at random after",
    "the claim in Placement. Retries: claims in Placement of a host that had no room left by then.",
)

GPUS = host_states.GPUS
_SIZES = (8, 4, 4, *[2] * 4, *[1] * 8)
# GPUs, or halves of GPUs as vGPUs, of an instance; 0 for one without
STREAMS = {"cards": _SIZES, "others": (*_SIZES, *[0] * 24), "vgpus": (1,)}
# How many requests come at once, how many instances each is for, and the seconds between
WAYS = {"one": (1, 1, 5.0), "50": (50, 1, 60.0), "multi": (1, 8, 5.0)}

# Of several instances in one request
_MOST_OF_SEVERAL = 2
_PARTS = 2  # vGPUs of a card
_SMALL, _WHOLE = ("nvidia-65", "GRID P4-4Q"), ("nvidia-71", "GRID P4-8Q")
_ENDED = object()


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """On how many hosts a large instance ``fits``, on how many it could, and lost claims."""

    fits: int
    best: int
    retries: int


class Clock:
    """The time, for what a scheduler remembers"""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


class Cloud:
    """Hosts as Placement counts them, and as their records in Nova's database say."""

    def __init__(self, hosts: int, stream: str, *, ours: bool) -> None:
        self.is_divided, self.ours = stream == "vgpus", ours
        self.states = {s.uuid: s for s in host_states.states(hosts, all_free=True)}
        self.units = GPUS * (_PARTS if self.is_divided else 1)
        self.used = dict.fromkeys(self.states, 0)  # in Placement
        self.started = dict.fromkeys(self.states, 0)  # by the host's record
        self.vcpus = dict.fromkeys(self.states, 0)
        self.retries = 0
        for state in self.states.values():
            self._report(state)

    def spec(self, count: int) -> objects.RequestSpec:
        """Return the request for an instance with *count* GPUs or vGPUs."""
        if count and not self.ours and not self.is_divided:
            spec = host_states.alias_spec()
            spec.pci_requests.requests[0].count = count
        elif count and self.ours:
            words = {"vgpus": str(count), "vgpu_type": _SMALL[0]}
            spec = (
                host_states.request_spec(words)
                if self.is_divided
                else host_states.spec({"gpus": str(count)})
            )
        else:
            spec = host_states.request_spec({})
        spec.flavor.vcpus = _vcpus(count, self.units)
        spec.flavor.memory_mb = spec.flavor.vcpus * (16384 if count else 8192)
        return spec

    def candidates(self, count: int) -> list[host_manager.HostState]:
        """Return copies of the records of all hosts with room for *count*."""
        candidates = []
        for state in self.states.values():
            if self._has_room(state.uuid, count):
                candidates.append(copy.copy(state))
                candidates[-1].pci_stats = copy.deepcopy(state.pci_stats)
        return candidates

    def claim(self, state: host_manager.HostState, count: int) -> bool:
        if not self._has_room(state.uuid, count):
            self.retries += 1
            return False
        self.used[state.uuid] += count
        self.vcpus[state.uuid] += _vcpus(count, self.units)
        return True

    def start(self, host: str, spec: objects.RequestSpec, count: int) -> Iterator[None]:
        """Let the host claim, some time later."""
        yield None
        state = self.states[host]
        state.consume_from_request(spec)
        self.started[host] += count
        self._report(state)

    def fits(self) -> int:
        return sum(
            not used and self.vcpus[host] + _vcpus(GPUS, GPUS) <= self.states[host].vcpus_total
            for host, used in self.used.items()
        )

    def best(self) -> int:
        """Return on how many hosts it would fit if all instances were moved, or a few more."""
        need = _vcpus(GPUS, GPUS)
        total = sum(int(state.vcpus_total) for state in self.states.values())
        by_gpus = math.ceil(sum(self.used.values()) / self.units)
        return min(len(self.states) - by_gpus, (total - sum(self.vcpus.values())) // need)

    def _has_room(self, host: str, count: int) -> bool:
        return (
            self.used[host] + count <= self.units
            and self.vcpus[host] + _vcpus(count, self.units) <= self.states[host].vcpus_total
        )

    def _report(self, state: host_manager.HostState) -> None:
        taken = self.started[state.uuid]
        if self.is_divided:
            # The host fills one card after another.
            free = self.units - taken
            types = ((*_SMALL, free), (*_WHOLE, free // _PARTS))
            divided = Divided(GPUS, math.ceil(free / _PARTS), types)
            text = stats.dumps(Report(HostStats("QEMU", ()), (), divided=divided))
            state.stats = {**state.stats, names.STATS: text}
        else:
            host_states.report_partitions(state, range(1, 1 + taken))
        state.stats["num_instances"] = str(state.num_instances)


def _vcpus(count: int, units: int) -> int:
    return count * 12 * GPUS // units if count else 8


def fill(
    hosts: int, stream: str, way: str, schedulers: int, *, ours: bool, seed: int = 20261124
) -> Outcome:
    """Return what remains after instances of *stream* have come to an empty cloud."""
    chance, clock = random.Random(seed), Clock()
    cloud = Cloud(hosts, stream, ours=ours)
    at_once, instances, seconds = WAYS[way]
    sizes = [size for size in STREAMS[stream] if instances == 1 or size <= _MOST_OF_SEVERAL]
    wanted, half = 0, hosts * cloud.units / 2
    own: list[list[GPUWeigher]] = [[GPUWeigher()] if ours else [] for _ in range(schedulers)]
    with mock.patch.object(recent_choices, "time", clock):
        while wanted < half:
            active: list[Iterator[object]] = []
            while wanted < half and len(active) < at_once:
                count = chance.choice(sizes)
                wanted += count * instances
                weighers = [*(kind() for kind in weights.all_weighers()), *chance.choice(own)]
                active.append(_request(cloud, chance, count, instances, weighers, active))
            while active:
                request = chance.choice(active)
                if next(request, _ENDED) is _ENDED:
                    active.remove(request)
            clock.now += seconds
    return Outcome(cloud.fits(), cloud.best(), cloud.retries)


def _request(
    cloud: Cloud,
    chance: random.Random,
    count: int,
    instances: int,
    weighers: Sequence[object],
    active: list[Iterator[object]],
) -> Iterator[None]:
    """Schedule *instances*; others have their turn at each ``yield``."""
    there = cloud.candidates(count)
    yield None
    spec = cloud.spec(count)
    spec.num_instances = instances
    for _ in range(instances):
        spec.instance_uuid = str(uuid.UUID(int=chance.getrandbits(128)))
        if cloud.ours and count:
            there = filters.in_order(there, spec)
        weighed = weights.HostWeightHandler().get_weighed_objects(weighers, there, spec)
        there = [host.obj for host in weighed]
        for state in there:
            yield None
            if cloud.claim(state, count):
                state.consume_from_request(spec)
                state.updated = timeutils.utcnow(with_timezone=True)
                active.append(cloud.start(state.uuid, spec, count))
                break


def rows(
    hosts: Sequence[int], streams: Sequence[str], ways: Sequence[str], schedulers: Sequence[int]
) -> Iterator[report.Row]:
    for number in hosts:
        for stream in streams:
            for way in ways:
                for several in schedulers:
                    ours, other = (
                        fill(number, stream, way, several, ours=ours) for ours in (True, False)
                    )
                    name = f"{number} hosts, {stream}, {way}, {several} schedulers"
                    yield report.Row(f"{name}: of {ours.best}", ours.fits, other.fits, "hosts")
                    yield report.Row(f"{name}: retries", ours.retries, other.retries, "")


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--hosts", type=int, nargs="+", default=(4, 30, 100), metavar="N")
    parser.add_argument("--streams", nargs="+", default=tuple(STREAMS), choices=STREAMS)
    parser.add_argument("--ways", nargs="+", default=tuple(WAYS), choices=WAYS)
    parser.add_argument("--schedulers", type=int, nargs="+", default=(1, 3), metavar="N")
    options = parser.parse_args()
    CONF([], project="nova", default_config_files=[])
    table = rows(options.hosts, options.streams, options.ways, options.schedulers)
    report.show(table, as_json=options.json, notes=NOTES)


if __name__ == "__main__":
    main()
