# SPDX-License-Identifier: Apache-2.0
"""Which walks are tried: of all that could be, in an order by a seed.

The first ones have each pair of values of two axes (kind, flavor, image, conditions, who asks,
state, operation) that can be had, as soon as possible.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

from tests.matrix import axes, outages
from tests.matrix.operations import ADMINS, OPERATIONS, STATES
from tests.matrix.walks import Outage, Setup, Step, Walk

_Choice = Mapping[str, str]
# How many are made up to find the one with most pairs that are not covered yet
_TRIES = 12
# How often a condition holds
_OFTEN = 0.3
# How many calls of an operation go wrong in one state: it has so many states that each call does.
_AT_ONCE = 12
# For how many walks one setup is kept, which costs as much as two
_EACH = 12
_YES = "yes"
# What is no request of a user's or an operator's
_OF_THE_CLOUD = ("period", "die", "return", "fill")
# What leads to no state that another operation does not lead to
_TRIVIAL = (
    *("period", "lock", "metadata", "snapshot", "backup", "boot-two", "reboot", "force-delete"),
    *("attach-volume", "attach-interface"),
)

AXES: Mapping[str, Sequence[str]] = {
    "kind": axes.ALL_KINDS,
    "flavor": [name for name in axes.FLAVORS if name != axes.PLAIN],
    "image": [*axes.IMAGES],
    **{name: ("", _YES) for name in axes.CONDITIONS},
    "member": ("", _YES),
    "state": [*STATES],
    "operation": [*OPERATIONS],
}


def pairs(rng: random.Random, kinds: Sequence[str] = axes.ALL_KINDS) -> Iterator[Walk]:
    """Yield walks until each pair of values that goes together is in one of them."""
    values = {**AXES, "kind": kinds}
    missing = {
        frozenset(pair)
        for one, other in itertools.combinations(values, 2)
        for pair in itertools.product(
            [(one, value) for value in values[one]], [(other, value) for value in values[other]]
        )
    }
    order = sorted(missing, key=sorted)
    rng.shuffle(order)
    for pair in order:
        if pair not in missing:
            continue
        missing.discard(pair)
        if (best := _best(rng, values, dict(pair), missing)) is None:
            continue
        setup = {name: best[name] for name in values if name not in ("state", "operation")}
        for _ in range(_EACH):
            missing -= _pairs_of(best)
            yield walk(best)
            following = _best(rng, values, setup, missing)
            if following is None or not missing & _pairs_of(following):
                break
            best = following


def _best(
    rng: random.Random,
    values: Mapping[str, Sequence[str]],
    fixed: Mapping[str, str],
    missing: Set[frozenset[tuple[str, str]]],
) -> _Choice | None:
    """Return a choice with most of the *missing* pairs, if one is possible at all."""
    tries = (_made_up(rng, values, fixed) for _ in range(_TRIES))
    possible = [choice for choice in tries if is_possible(choice)]
    return max(possible, key=lambda own: len(_pairs_of(own) & missing), default=None)


def _made_up(
    rng: random.Random, values: Mapping[str, Sequence[str]], fixed: Mapping[str, str]
) -> _Choice:
    """Return a choice with the values that are *fixed*, and others that go with them if any do."""
    kind = fixed.get("kind") or rng.choice(values["kind"])
    steps = [
        (state, operation)
        for state, operation in _steps(kind)
        if fixed.get("state", state) == state and fixed.get("operation", operation) == operation
    ]
    state, operation = rng.choice(steps or [*_steps(kind)])
    flavors = [name for name in values["flavor"] if kind in axes.FLAVORS[name].kinds]
    images = [name for name, image in axes.IMAGES.items() if kind in image.kinds]
    choice = {
        "kind": kind,
        "flavor": rng.choice(flavors),
        "image": rng.choice(images),
        **{name: _YES if rng.random() < _OFTEN else "" for name in axes.CONDITIONS},
        "member": _YES if operation in ADMINS and rng.random() < _OFTEN else "",
        "state": state,
        "operation": operation,
    }
    choice |= dict.fromkeys(_needed(choice), _YES)
    return {**choice, **fixed}


@functools.cache
def _steps(kind: str) -> Sequence[tuple[str, str]]:
    """Return each state that instances of that *kind* have, with each operation in it."""
    return [
        (state, name)
        for state, own in STATES.items()
        for name, operation in OPERATIONS.items()
        if own.status in operation.before
        and kind in operation.kinds
        and all(kind in OPERATIONS[step].kinds for step in own.steps)
    ]


def _needed(choice: _Choice) -> Iterator[str]:
    for name in (*STATES[choice["state"]].steps, choice["operation"]):
        if needs := OPERATIONS[name].needs:
            yield needs


def _pairs_of(choice: _Choice) -> set[frozenset[tuple[str, str]]]:
    return {frozenset(pair) for pair in itertools.combinations(choice.items(), 2)}


def is_possible(choice: _Choice) -> bool:
    """Return whether its values go together."""
    kind, operation = choice["kind"], choice["operation"]
    conditions = [axes.CONDITIONS[name] for name in axes.CONDITIONS if choice[name]]
    kinds = [
        axes.FLAVORS[choice["flavor"]].kinds,
        axes.IMAGES[choice["image"]].kinds,
        *(condition.kinds for condition in conditions),
    ]
    return (
        (choice["state"], operation) in _steps(kind)
        and all(kind in kind_set for kind_set in kinds)
        and all(choice["image"] in condition.images for condition in conditions)
        and all(choice[needed] for needed in _needed(choice))
        and not (choice["member"] and operation not in ADMINS)
        and not (operation == "delete" and choice["soft-delete"])
    )


def walk(choice: _Choice) -> Walk:
    conditions = tuple(name for name in axes.CONDITIONS if choice[name])
    setup = Setup(
        choice["kind"], choice["flavor"], choice["image"], conditions, bool(choice["member"])
    )
    steps = (*STATES[choice["state"]].steps, choice["operation"])
    return Walk(setup, tuple(map(Step, steps)))


def twin(own: Walk) -> Walk | None:
    """Return the same walk of an instance without GPUs, if it has one to be compared with."""
    if own.setup.flavor == axes.PLAIN:
        return None
    conditions = tuple(name for name in own.setup.conditions if name != "limit")
    setup = Setup(own.setup.kind, axes.PLAIN, own.setup.image, conditions, own.setup.is_member)
    return Walk(setup, own.steps)


def has_rivals(own: Walk) -> bool:
    """Return whether others take GPUs, so that it may end otherwise than its twin."""
    return bool({"fill", "boot-two"} & {step.operation for step in own.steps})


def status_after(own: Walk) -> str:
    """Return the status that the instance has if all goes well."""
    status = "ACTIVE"
    for step in own.steps:
        status = OPERATIONS[step.operation].after or status
    return status


def setups(rng: random.Random, kinds: Sequence[str] = axes.ALL_KINDS) -> Iterator[Setup]:
    """Yield setups at random, without end."""
    values = {**AXES, "kind": kinds}
    while True:
        fixed = {"state": "active", "operation": "period", "member": ""}
        choice = _made_up(rng, values, fixed)
        if is_possible(choice):
            yield walk(choice).setup


def with_outages(
    own: Walk, depth: int, made: Sequence[outages.Call], most: int, tried: Set[str] = frozenset()
) -> list[Walk]:
    """Return *own* with each call *made* in its step *depth* going wrong, in each way.

    :param most: how many of them at most, drawn by the walk's name, of calls with one name one; 0
        for all
    :param tried: what :func:`tries` of those that are not to be drawn
    """
    steps = [
        Step(own.steps[depth].operation, Outage(way.value, name))
        for name, call in outages.numbered(made)
        for way in call.ways
    ]
    if most:
        random.Random(str(own)).shuffle(steps)
        new = {tries(step): step for step in steps if tries(step) not in tried}
        steps = list(new.values())[:most]
    return [Walk(own.setup, (*own.steps[:depth], step, *own.steps[depth + 1 :])) for step in steps]


def tries(step: Step) -> str:
    """Return what goes wrong in *step*, whichever of the calls with one name it is."""
    return str(step).partition(".")[0]


def calls(rng: random.Random, kinds: Sequence[str], most: int = _AT_ONCE) -> Iterator[Walk]:
    """Yield walks of each operation in each state, of which some calls go wrong.

    What went wrong in one state does not in another one, with the same kind of GPUs: so each call
    of an operation, by its name, goes wrong in each way once.
    """
    for own in pairs(rng, kinds):
        if own.steps[-1].operation not in _OF_THE_CLOUD and not own.setup.is_member:
            last = Step(own.steps[-1].operation, Outage(outages.EACH, str(most)))
            yield Walk(own.setup, (*own.steps[:-1], last))


class Exploration:
    """Walks on and on: each operation in each state that is found, whichever way led there.

    What contradicts itself in a new way is walked on from first, then what is near.

    :param setup: that of all these walks
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._known: set[object] = set()
        self._kinds: dict[Walk, set[str]] = {}
        self._number = itertools.count()
        self._open: list[tuple[bool, int, int, Walk, str]] = []

    def __iter__(self) -> Iterator[list[Walk]]:
        """Yield the walks of one more operation each in a state that is new."""
        yield [Walk(self._setup, ())]
        while self._open:
            *_, own, status = heapq.heappop(self._open)
            yield [
                Walk(self._setup, (*own.steps, Step(name)))
                for name, operation in OPERATIONS.items()
                if status in operation.before
                and name not in _TRIVIAL
                and self._setup.kind in operation.kinds
                and (operation.needs is None or operation.needs in self._setup.conditions)
                and not (name == "delete" and "soft-delete" in self._setup.conditions)
            ]

    def take(self, own: Walk, status: str, state: object, kinds: Set[str]) -> None:
        """Remember the *state* that *own* has led to, and the *kinds* of what is wrong then."""
        known = self._kinds.get(Walk(own.setup, own.steps[:-1]), set())
        self._kinds[own] = known | kinds
        if state and state not in self._known:
            self._known.add(state)
            item = (kinds <= known, len(own.steps), next(self._number), own, status)
            heapq.heappush(self._open, item)


class Explorations:
    """One after the other, in each of the *setups*."""

    def __init__(self, setups: Iterator[Setup]) -> None:
        self._setups = setups
        self._now: Exploration | None = None

    def __iter__(self) -> Iterator[list[Walk]]:
        for setup in self._setups:
            self._now = Exploration(setup)
            yield from self._now

    def take(self, outcome: Any) -> None:
        """Hear of what a walk has led to (:class:`branches.Found`)."""
        if self._now and not outcome.error:
            status = outcome.status.partition(" ")[0]
            kinds = {difference.kind for difference in outcome.differences}
            self._now.take(outcome.walk, status, outcome.state, kinds)
