# SPDX-License-Identifier: Apache-2.0
"""What a plan is to lead to, and the least number of moves that it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from nova_gpu.core.planning.fleet import Need
from nova_gpu.core.planning.room import Room


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Room for ``count`` instances that are not there yet"""

    need: Need
    count: int

    def least(self, room: Room) -> int | None:
        """The least number of moves of any plan from *room*; ``None`` where there is none"""
        # By how many fit: what it takes at least on the hosts so far
        least: list[int | None] = [0] + [None] * self.count
        for host in room.could_have(self.need):
            each = _least_by_fit(room, self.need, host, self.count)
            joined = list(least)
            for before, cost in enumerate(least):
                for fit, leaving in enumerate(each):
                    at = min(before + fit, self.count)
                    if cost is None:
                        continue
                    known = joined[at]
                    if known is None or cost + leaving < known:
                        joined[at] = cost + leaving
            least = joined
            if least[self.count] == 0:
                break
        return least[self.count]

    def closed(self) -> Collection[int]:
        return ()


@dataclasses.dataclass(frozen=True, slots=True)
class Empty:
    """A host, by its index, that no instance has GPUs of"""

    host: int

    def least(self, room: Room) -> int | None:
        """The least number of moves of any plan from *room*; ``None`` where there is none"""
        there = room.on[self.host]
        return len(there) if len(room.movable(self.host)) == len(there) else None

    def closed(self) -> Collection[int]:
        """The hosts that nothing is moved to"""
        return (self.host,)


Goal = Place | Empty


def _least_by_fit(room: Room, need: Need, host: int, most: int) -> list[int]:
    """How many have to leave the host at least, for none to fit, for one, and so on"""
    found = [0]
    while len(found) <= most:
        if (least := room.least_leaving(need, host, len(found))) is None:
            break
        found.append(least)
    return found
