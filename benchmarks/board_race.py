# SPDX-License-Identifier: Apache-2.0
"""Bursts on hosts with NVSwitches: how many claims find enough GPUs free and no partition.

python -m benchmarks.board_race [--json] [--hosts N] [--burst N ...] [--periods N]
"""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence

from nova.scheduler import host_manager, weights
from nova.scheduler.weights import ram

from benchmarks import host_states, report
from nova_gpu.conf import CONF
from nova_gpu.core.card_sets import Module
from nova_gpu.scheduler import filters
from nova_gpu.scheduler.weights import GPUWeigher
from tests.fixtures import card_sets

NOTES = (
    "Equal boards of HGX H100. In each period so many instances end, by chance, that four fifths",
    "of all GPUs are in use, hosts report, and a burst comes: instances of 1, 2, 4 and 8 GPUs,",
    "equally many GPUs of each. An instance goes to the best of the hosts that have enough free in",
    "Placement, by reports that do not know the burst, and after a refused claim to the next best,",
    "three in all, as Nova does. Ours: with GPUWeigher; other: with RAMWeigher alone.",
)

_ATTEMPTS = 3
_IN_USE = 0.8
# Of each size as many GPUs
_SIZES = (8, 4, 4, 2, 2, 2, 2, *[1] * 8)


@dataclasses.dataclass(slots=True)
class Outcome:
    """Of ``claims`` those that were ``refused``, and the ``instances`` that had no other host or no
    attempt left, and so ``failed``"""

    instances: int = 0
    claims: int = 0
    refused: int = 0
    failed: int = 0


class Fleet:
    """:param weighers: by which hosts are chosen"""

    def __init__(self, hosts: int, chance: random.Random, weighers: Sequence[object]) -> None:
        self.states = host_states.states(hosts, all_free=True)
        self.taken: dict[str, set[Module]] = {state.uuid: set() for state in self.states}
        self._guests: list[tuple[host_manager.HostState, frozenset[Module]]] = []
        self._chance = chance
        self._weighers = weighers
        self._board = card_sets.h100()
        self.outcome = Outcome()

    def _room(self, taken: Collection[Module]) -> Mapping[int, int]:
        return self._board.with_taken(taken).room()

    def period(self, burst: int) -> None:
        """Instances end, hosts report, and then others come."""
        most = _IN_USE * len(self.states) * host_states.GPUS
        self._chance.shuffle(self._guests)
        while sum(len(part) for _, part in self._guests) > most:
            state, part = self._guests.pop()
            self.taken[state.uuid] -= part
            state.free_ram_mb += len(part)
        for state in self.states:
            host_states.report_partitions(state, self.taken[state.uuid], self._room)
        for _ in range(burst):
            self._arrives(self._chance.choice(_SIZES))

    def _arrives(self, count: int) -> None:
        there = [s for s in self.states if host_states.GPUS - len(self.taken[s.uuid]) >= count]
        if not there:
            return  # which Placement says
        self.outcome.instances += 1
        for state in self._best_first(there, count)[:_ATTEMPTS]:
            self.outcome.claims += 1
            taken = self.taken[state.uuid]
            if part := self._board.with_taken(taken).choose(count):
                taken |= part
                state.free_ram_mb -= len(part)
                self._guests.append((state, part))
                return
            self.outcome.refused += 1
        self.outcome.failed += 1

    def _best_first(
        self, there: Sequence[host_manager.HostState], count: int
    ) -> list[host_manager.HostState]:
        spec = host_states.spec({"gpus": str(count)})
        spec.instance_uuid = str(uuid.UUID(int=self._chance.getrandbits(128)))
        listed = filters.in_order(there, spec)
        weighed_hosts = weights.HostWeightHandler().get_weighed_objects(
            self._weighers, listed, spec
        )
        return [host.obj for host in weighed_hosts]


def race(hosts: int, burst: int, periods: int, weighers: Sequence[object]) -> Outcome:
    fleet = Fleet(hosts, random.Random(20261124), weighers)
    for _ in range(hosts * host_states.GPUS // burst):  # until it is full
        fleet.period(burst)
    fleet.outcome = Outcome()
    for _ in range(periods):
        fleet.period(burst)
    return fleet.outcome


def rows(hosts: int, bursts: Sequence[int], periods: int) -> Iterator[report.Row]:
    for burst in bursts:
        ours = race(hosts, burst, periods, [ram.RAMWeigher(), GPUWeigher()])
        other = race(hosts, burst, periods, [ram.RAMWeigher()])
        refused = [100 * outcome.refused / outcome.claims for outcome in (ours, other)]
        failed = [100 * outcome.failed / outcome.instances for outcome in (ours, other)]
        name = f"{hosts} hosts, bursts of {burst}"
        yield report.Row(f"{name}: claims refused", refused[0], refused[1], "%")
        yield report.Row(f"{name}: instances failed", failed[0], failed[1], "%")


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--hosts", type=int, default=100, metavar="N")
    parser.add_argument("--burst", type=int, nargs="+", default=(1, 8, 64), metavar="N")
    parser.add_argument("--periods", type=int, default=30, metavar="N")
    options = parser.parse_args()
    CONF([], project="nova", default_config_files=[])
    table = list(rows(options.hosts, options.burst, options.periods))
    report.show(table, as_json=options.json, notes=NOTES)


if __name__ == "__main__":
    main()
