# SPDX-License-Identifier: Apache-2.0
"""Which instances a run makes, and where in their lives nova-compute dies."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

from tests.crash import points

# Each life begins with a spawn, so that nothing is left of the one before.
_LIVES = (
    ("spawn", "destroy"),
    ("spawn", "reboot", "destroy"),
    ("spawn", "resize", "destroy"),
    ("spawn", "resize", "confirm", "destroy"),
    ("spawn", "resize", "revert", "destroy"),
)
# About as many as each has; a point past the end is reported as not reached, and is none.
_STEPS = {"spawn": 40, "destroy": 30, "reboot": 25, "resize": 60, "confirm": 25, "revert": 40}
_SECONDS = {"spawn": 3.0, "destroy": 1.5, "reboot": 2.0, "resize": 4.0, "confirm": 1.0, "revert": 3}


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """``point``: as :class:`tests.crash.points.Trap` takes it, ``time 1.25`` (seconds after the
    operation was asked for), or ``None``: nobody dies.
    """

    operation: str
    point: str | None = None

    def __str__(self) -> str:
        return f"{self.operation}: {self.point}"


Life = tuple[Stage, ...]


def lives(seed: int) -> Iterator[Life]:
    """Without end: first every named point once, in an order of the seed's, then steps and times.

    Every life's last point is one of its destruction: what a crash left is then removed in spite
    of another.
    """
    chance = random.Random(seed)
    named = [
        Stage(function, point) for function in points.FUNCTIONS for point in points.named(function)
    ]
    chance.shuffle(named)
    destroys = [stage for stage in named if stage.operation == "destroy"]
    for stage in named:
        if stage.operation != "destroy":
            yield _life(stage, destroys.pop() if destroys else _any("destroy", chance))
    for stage in destroys:
        yield _life(Stage("spawn"), stage)
    while True:
        operation = chance.choice(
            [function for function in points.FUNCTIONS if function != "destroy"]
        )
        yield _life(_any(operation, chance), _any("destroy", chance))


def _life(stage: Stage, last: Stage) -> Life:
    operations = next(life for life in _LIVES if stage.operation in life)
    before = operations[: operations.index(stage.operation)]
    return (*(Stage(operation) for operation in before), stage, last)


def _any(operation: str, chance: random.Random) -> Stage:
    if chance.random() < 0.5:
        return Stage(operation, f"step {chance.randint(1, _STEPS[operation])}")
    return Stage(operation, f"time {chance.uniform(0, _SECONDS[operation]):.2f}")
