# SPDX-License-Identifier: Apache-2.0
"""Tenants and operators who do what comes to their mind, and what contradicts itself then.

Several instances of one project, images good and bad, hosts that die and come back, quota: what
comes next hypothesis draws, and what fails it makes as short as it can. The walk that is left is a
line for ``recorded.yaml``.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st

from tests.cloud import oracle
from tests.matrix import axes, plans
from tests.matrix.branches import Broken
from tests.matrix.operations import OPERATIONS, Operation
from tests.matrix.walks import Setup, Step, Walk

SLOTS = 3
_SETUPS = 8
_CHANCES = 10**6
# After each of so many steps, at the latest, every host has a period.
_PERIOD = "period"
# More than a step may take
_PATIENCE_S = 400
# What is so without a period
_AT_ONCE = ("shared",)


class Contradiction(AssertionError):
    pass


class ShortEnough(BaseException):
    """The end of making a walk shorter. Hypothesis takes each :class:`Exception` for a failure."""


class Search:
    """What the machines have in common.

    ``failed``: the shortest walk that contradicts itself.

    :param stream: to the process that has the cloud
    :param shrink_s: how long after the beginning of the first one it is made shorter: not at all
        where already that one took so long
    """

    def __init__(self, stream: Any, setups: Sequence[Setup], shrink_s: float = math.inf) -> None:
        self.stream, self.setups = stream, setups
        self.steps = self.begun = 0
        self.failed: Walk | None = None
        self.texts: list[str] = []
        self._shrink_s, self._deadline = shrink_s, math.inf
        self._began = 0.0

    def fail(self, walk: Walk, texts: list[str]) -> NoReturn:
        if self.failed is None:
            self._deadline = self._began + self._shrink_s
        if self.failed is None or len(walk.steps) <= len(self.failed.steps):
            self.failed, self.texts = walk, texts
        raise Contradiction("\n".join(texts))

    def begin(self) -> None:
        self.expect_time()
        self._began = time.monotonic()

    def expect_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise ShortEnough

    def ask(self, words: object, walk: Walk) -> Any:
        """Return the answer."""
        self.stream.send(words)
        if not self.stream.poll(_PATIENCE_S):
            raise TimeoutError(f"no answer to {words} within {_PATIENCE_S} s")
        answer = self.stream.recv()
        if isinstance(answer, Broken):
            self.fail(walk, [answer])
        return answer


def machine(own: Search) -> type[stateful.RuleBasedStateMachine]:
    class Tenants(stateful.RuleBasedStateMachine):
        """``statuses``: by slot, that of its instance."""

        def __init__(self) -> None:
            super().__init__()
            self.walk: Walk | None = None
            self.statuses: dict[int, str] = {}

        @stateful.initialize(setup=st.sampled_from(own.setups), chance=st.integers(0, _CHANCES))
        def begin(self, setup: Setup, chance: int) -> None:
            # Hypothesis begins with the simplest walk there is: nothing but periods.
            hypothesis.assume(chance)
            own.begin()
            walk = Walk(setup, ())
            self.statuses = own.ask(("begin", setup), walk)
            self.walk = walk
            own.begun += 1

        @stateful.rule(data=st.data(), slot=st.integers(0, SLOTS - 1))
        def do(self, data: st.DataObject, slot: int) -> None:
            assert self.walk
            names = [
                name
                for name, operation in OPERATIONS.items()
                if _is_possible(operation, self.walk.setup, self.statuses.get(slot))
            ]
            self.take(Step(data.draw(st.sampled_from(names)), slot=slot))

        @stateful.rule()
        def pass_time(self) -> None:
            self.take(Step(_PERIOD))

        def take(self, step: Step) -> None:
            assert self.walk
            own.expect_time()
            walk = Walk(self.walk.setup, (*self.walk.steps, step))
            self.walk = None  # nothing of it is there to be ended if it breaks
            self.statuses, differences = own.ask(("step", step), walk)
            self.walk = walk
            own.steps += 1
            if step.operation != _PERIOD:
                differences = [
                    difference for difference in differences if difference.kind in _AT_ONCE
                ]
            self.judge(differences)

        def judge(self, differences: Iterable[oracle.Difference]) -> None:
            assert self.walk
            if texts := [*map(str, differences)]:
                own.fail(self.walk, texts)

        def teardown(self) -> None:
            if self.walk is not None:
                self.judge(own.ask(("end",), self.walk))

    return Tenants


def _is_possible(operation: Operation, setup: Setup, status: str | None) -> bool:
    if status is None:
        return operation is OPERATIONS["boot"]
    return (
        status in operation.before
        and setup.kind in operation.kinds
        and (operation.needs is None or operation.needs in setup.conditions)
    )


def search(own: Search, steps: int, seeds: int, seed: int) -> None:
    """Let tenants act until a walk contradicts itself; ``own.failed`` is a short one then.

    Hypothesis itself ends making it shorter after five minutes.
    """
    settings = hypothesis.settings(
        max_examples=seeds,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        derandomize=False,
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
        print_blob=False,
    )
    made = hypothesis.seed(seed)(machine(own))
    try:
        stateful.run_state_machine_as_test(made, settings=settings)
    except (Contradiction, ShortEnough, hypothesis.errors.Flaky):  # as one that ended early is
        if own.failed is None:
            raise


def setups(seed: int, kind: str) -> list[Setup]:
    """Return some setups, of which each has a quota."""
    plain_setups = itertools.islice(plans.setups(random.Random(seed), [kind]), _SETUPS)
    return [
        dataclasses.replace(
            setup, conditions=tuple(n for n in axes.CONDITIONS if n in ("limit", *setup.conditions))
        )
        for setup in plain_setups
    ]
