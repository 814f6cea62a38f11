# SPDX-License-Identifier: Apache-2.0
"""Requests at once for the GPUs of equal hosts: how many claims they lose to each other.

python -m benchmarks.claim_race [--json] [--hosts N] [--schedulers PROCESSESxTHREADS ...]
"""

from __future__ import annotations

import copy
import dataclasses
import random
import uuid
from collections.abc import Iterator, Sequence

from nova.scheduler import host_manager, weights
from oslo_utils import timeutils

from benchmarks import host_states, report
from nova_gpu.conf import CONF
from nova_gpu.scheduler import recent_choices
from nova_gpu.scheduler.filters import GPUFilter
from nova_gpu.scheduler.weights import GPUWeigher

NOTES = (
    "Each request is for one instance with one GPU, or for a host's worth of them, until every GPU",
    "is in use. Each instance goes through GPUFilter, all of Nova's weighers and GPUWeigher, with",
    "the hosts as they were when the request came, less what it took itself, and claims the",
    "best host, then the next best. What Placement counts is a number for each host; requests",
    "take turns at random. Lost: claims of a host that had none left by then. Ours: by what the",
    "process has chosen lately; other: by a random choice among equal hosts, without that memory.",
    "PxT: so many processes of nova-scheduler ([scheduler]workers, of all controllers) that share",
    "nothing but the database, and so many requests under way in each: by Nova's default of",
    "[DEFAULT]executor_thread_pool_size at most 64.",
)

_MEMORY_MIB = 4096
_ENDED = object()
_SCHEDULERS = ("1x8", "1x64", "2x4", "2x32", "4x2", "4x16", "8x1", "8x8", "8x64")


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """``lost`` claims until ``used`` GPUs were in use"""

    lost: int
    used: int


class Cloud:
    """Equal hosts, and how many GPUs of each Placement has left."""

    def __init__(self, hosts: int, *, reports: bool) -> None:
        self._reports = reports
        self.states = host_states.states(hosts, all_free=True)
        self.left = {state.uuid: host_states.GPUS for state in self.states}
        self.lost = 0

    def candidates(self) -> Sequence[host_manager.HostState]:
        """As the database has them now."""
        candidates = []
        for state in self.states:
            if self.left[state.uuid]:
                now = copy.copy(state)
                now.free_ram_mb -= _MEMORY_MIB * (host_states.GPUS - self.left[state.uuid])
                candidates.append(now)
        return candidates

    def claim(self, state: host_manager.HostState) -> bool:
        if not self.left[state.uuid]:
            self.lost += 1
            return False
        self.left[state.uuid] -= 1
        if self._reports:
            (known,) = (known for known in self.states if known.uuid == state.uuid)
            used = range(1, 1 + host_states.GPUS - self.left[state.uuid])
            host_states.report_partitions(known, used)
        return True


class _RandomTurns(recent_choices.Taken):
    """No memory of what was chosen: equal hosts have a random order."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(recent_choices.Choices())
        self._chance = chance

    def __bool__(self) -> bool:
        return True

    def turn(self, unreported: int, place: int, *, breaks_up: bool) -> tuple[int, int]:
        return unreported, self._chance.getrandbits(32)


class _RandomWeigher(GPUWeigher):
    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._turns = _RandomTurns(chance)

    def _taken(self, request: object, spec: object) -> recent_choices.Taken:
        return self._turns


def race(
    hosts: int,
    processes: int,
    threads: int,
    chance: random.Random,
    instances: int = 1,
    *,
    at_random: bool = False,
    reports: bool = True,
) -> Outcome:
    """:param threads: how many requests each process has under way
    :param instances: how many each asks for
    :param at_random: whether equal hosts are chosen from at random, not by the last choices
    :param reports: whether hosts report at each claim, or in a period after all of them
    :raises RuntimeError: where an instance has no host although GPUs are left"""
    cloud = Cloud(hosts, reports=reports)
    waiting = hosts * host_states.GPUS // instances
    weighers = [_RandomWeigher(chance) if at_random else GPUWeigher() for _ in range(processes)]
    idle = [weigher for weigher in weighers for _ in range(threads)]
    active: list[tuple[Iterator[object], GPUWeigher]] = []
    while waiting or active:
        while waiting and idle:
            weigher = idle.pop(chance.randrange(len(idle)))
            active.append((_request(cloud, chance, instances, weigher), weigher))
            waiting -= 1
        one, weigher = chance.choice(active)
        if next(one, _ENDED) is _ENDED:
            active.remove((one, weigher))
            idle.append(weigher)
    return Outcome(cloud.lost, sum(host_states.GPUS - n for n in cloud.left.values()))


def _request(
    cloud: Cloud, chance: random.Random, instances: int, weigher: GPUWeigher
) -> Iterator[object]:
    """Others have their turn at each ``yield``."""
    spec = host_states.spec({"gpus": "1"})
    spec.num_instances = instances
    there = cloud.candidates()
    yield None
    for _ in range(instances):
        spec.instance_uuid = str(uuid.UUID(int=chance.getrandbits(128)))
        there = best_first(there, spec, weigher)
        for state in there:
            yield None
            if cloud.claim(state):
                state.free_ram_mb -= _MEMORY_MIB
                state.num_instances += 1
                state.updated = timeutils.utcnow(with_timezone=True)
                break
        else:
            # What Nova does then: the instance is scheduled anew.
            there = cloud.candidates()
            if not any(map(cloud.claim, best_first(there, spec, weigher))):
                raise RuntimeError("no host for an instance")


def best_first(
    there: Sequence[host_manager.HostState], spec: object, weigher: GPUWeigher
) -> list[host_manager.HostState]:
    """As Nova's scheduler has them"""
    passing = list(GPUFilter().filter_all(there, spec))
    weighers = [*(kind() for kind in weights.all_weighers()), weigher]
    weighed_hosts = weights.HostWeightHandler().get_weighed_objects(weighers, passing, spec)
    return [host.obj for host in weighed_hosts]


def rows(hosts: int, schedulers: Sequence[str]) -> Iterator[report.Row]:
    for instances in (1, host_states.GPUS):
        for scheduler in schedulers:
            processes, threads = map(int, scheduler.split("x"))
            outcome, other = (
                race(
                    *(hosts, processes, threads, random.Random(20261124), instances),
                    at_random=at_random,
                )
                for at_random in (False, True)
            )
            name = f"{hosts} hosts, {scheduler} requests for {instances}"
            yield report.Row(f"{name}: claims lost", outcome.lost, other.lost, "")
            yield report.Row(f"{name}: GPUs in use", outcome.used, None, "")


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--hosts", type=int, default=100, metavar="N")
    parser.add_argument("--schedulers", nargs="+", default=_SCHEDULERS, metavar="PxT")
    options = parser.parse_args()
    CONF([], project="nova", default_config_files=[])
    report.show(list(rows(options.hosts, options.schedulers)), as_json=options.json, notes=NOTES)


if __name__ == "__main__":
    main()
