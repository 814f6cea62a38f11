# SPDX-License-Identifier: Apache-2.0
"""The NUMA cells of a guest whose flavor and image say nothing of them: one for each NUMA node of
the host that has cards of the guest's."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """A part of the guest on ``node`` of the host. ``cpus`` are virtual ones; a guest with fewer of
    them than cells has some without."""

    node: int
    cpus: range
    memory_mib: int


def of(nodes: Sequence[int], vcpus: int, memory_mib: int) -> tuple[Cell, ...]:
    """The cells of a guest with cards on these nodes, as equal as can be."""
    parts = (_parts(total, len(nodes)) for total in (vcpus, memory_mib))
    return tuple(
        Cell(node, cpus, len(memory)) for node, cpus, memory in zip(nodes, *parts, strict=True)
    )


def _parts(total: int, count: int) -> list[range]:
    """What is left over goes to the first ones: a guest with one processor has it there."""
    ends = [-(-total * part // count) for part in range(count + 1)] if count else []
    return [range(*each) for each in itertools.pairwise(ends)]
