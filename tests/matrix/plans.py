# SPDX-License-Identifier: Apache-2.0
"""Which walks are tried: of all that could be, in an order by a seed.

The first ones have each pair of values of two axes (kind, flavor, image, conditions, who asks,
state, operation) that can be had, as soon as possible.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from tests.matrix import axes, outages
from tests.matrix.operations import ADMINS, OPERATIONS, STATES
from tests.matrix.walks import Outage, Setup, Step, Walk

_Choice = Mapping[str, str]
# How many are made up to find the one with most pairs that are not covered yet
_TRIES = 30
# For how many walks one setup is kept, which costs as much as two
_EACH = 12
_YES = "yes"
# What changes nothing that an operation after it could meet
_WITHOUT_CALLS = ("period", "lock", "metadata", "die", "return", "fill")

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
    """Return a choice with the values that are *fixed*, and what these need."""
    choice = {name: fixed.get(name, "") for name in values}
    for name, own in values.items():
        if name in fixed or (own[0] == "" and rng.random() < 0.6):
            continue
        possible = [value for value in own if is_possible({**choice, name: value}, partly=True)]
        choice[name] = rng.choice(possible or list(own))
    for needed in _needed(choice):
        if needed not in fixed:
            choice[needed] = _YES
    return choice


def _needed(choice: _Choice) -> Iterator[str]:
    names = [*STATES[choice["state"]].steps] if choice["state"] else []
    for name in (*names, choice["operation"]):
        if name and (needs := OPERATIONS[name].needs):
            yield needs


def _pairs_of(choice: _Choice) -> set[frozenset[tuple[str, str]]]:
    return {frozenset(pair) for pair in itertools.combinations(choice.items(), 2)}


def is_possible(choice: _Choice, *, partly: bool = False) -> bool:
    """Return whether Nova allows the choice; *partly*: what is not chosen yet is empty."""
    kind, image, state = choice["kind"], choice["image"], choice["state"]
    operation = choice["operation"]
    chosen = [name for name in axes.CONDITIONS if choice[name]]
    limits = [
        *([axes.FLAVORS[choice["flavor"]].kinds] if choice["flavor"] else []),
        *([axes.IMAGES[image].kinds] if image else []),
        *(axes.CONDITIONS[name].kinds for name in chosen),
        *([OPERATIONS[operation].kinds] if operation else []),
        *(OPERATIONS[name].kinds for name in (STATES[state].steps if state else ())),
    ]
    if kind and not all(kind in each for each in limits):
        return False
    if image and not all(image in axes.CONDITIONS[name].images for name in chosen):
        return False
    if choice["member"] and operation and operation not in ADMINS:
        return False
    if operation and state and STATES[state].status not in OPERATIONS[operation].before:
        return False
    if not partly and any(not choice[needed] for needed in _needed(choice)):
        return False
    deletes = {"delete", "soft-delete"} & {operation}
    return not (deletes == {"delete"} and choice["soft-delete"])


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
    if {"fill", "boot-two"} & {step.operation for step in own.steps}:
        return None  # what there is of GPUs is taken, and the rest is not
    conditions = tuple(name for name in own.setup.conditions if name != "limit")
    setup = Setup(own.setup.kind, axes.PLAIN, own.setup.image, conditions, own.setup.is_member)
    return Walk(setup, own.steps)


def further(
    rng: random.Random, own: Walk, length: int, status: str | None = None
) -> Iterator[Walk]:
    """Yield *own* followed by *length* further operations, at random, without end."""
    while True:
        steps, now = list(own.steps), status or status_after(own)
        for _ in range(length):
            possible = [
                name
                for name, each in OPERATIONS.items()
                if now in each.before
                and own.setup.kind in each.kinds
                and (each.needs is None or each.needs in own.setup.conditions)
                and not (name == "delete" and "soft-delete" in own.setup.conditions)
            ]
            if not possible:
                break
            name = rng.choice(possible)
            steps.append(Step(name))
            now = OPERATIONS[name].after or now
        yield Walk(own.setup, tuple(steps))


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


def triples(rng: random.Random, kinds: Sequence[str] = axes.ALL_KINDS) -> Iterator[Walk]:
    """Yield walks of a state and three operations at random, without end."""
    states = [*STATES]
    for setup in setups(rng, kinds):
        steps = STATES[rng.choice(states)].steps
        needs = {OPERATIONS[name].needs for name in steps} - {None, *setup.conditions}
        if needs or any(setup.kind not in OPERATIONS[name].kinds for name in steps):
            continue
        yield next(further(rng, Walk(setup, tuple(map(Step, steps))), 3))


def with_outages(own: Walk, depth: int, made: Sequence[tuple[str, str]], most: int) -> list[Walk]:
    """Return *own* with each call *made* in its step *depth* going wrong, in each way.

    :param most: how many of them, chosen by the walk's name; 0 for all
    """
    found = []
    for boundary, name in outages.numbered(made):
        for way in outages.WAYS[boundary]:
            step = Step(own.steps[depth].operation, Outage(way.value, name))
            steps = (*own.steps[:depth], step, *own.steps[depth + 1 :])
            found.append(Walk(own.setup, steps))
    if most and len(found) > most:
        return random.Random(str(own)).sample(found, most)
    return found


def calls(rng: random.Random, kinds: Sequence[str], most: int = 0) -> Iterator[Walk]:
    """Yield walks of each operation in each state whose calls go wrong, as ``EACH`` says."""
    for own in pairs(rng, kinds):
        if own.steps[-1].operation not in _WITHOUT_CALLS and not own.setup.is_member:
            last = Step(own.steps[-1].operation, Outage(outages.EACH, str(most or "")))
            yield Walk(own.setup, (*own.steps[:-1], last))


class Exploration:
    """Walks on and on: each operation in each state that is found, whichever way led there.

    :param setup: that of all these walks
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._known: set[object] = set()
        self._open: list[tuple[Walk, str]] = [(Walk(setup, ()), "ACTIVE")]

    def __iter__(self) -> Iterator[list[Walk]]:
        """Yield the walks of one more operation each in a state that is new."""
        while self._open:
            own, status = self._open.pop(0)
            yield [
                Walk(self._setup, (*own.steps, Step(name)))
                for name, each in OPERATIONS.items()
                if status in each.before
                and name not in _WITHOUT_CALLS
                and self._setup.kind in each.kinds
                and (each.needs is None or each.needs in self._setup.conditions)
                and not (name == "delete" and "soft-delete" in self._setup.conditions)
            ]

    def take(self, own: Walk, status: str, state: object) -> None:
        """Remember the *state* that *own* has led to."""
        if state and state not in self._known:
            self._known.add(state)
            self._open.append((own, status))


def in_order(walks: Iterable[Walk]) -> list[Walk]:
    """Return them without repetition, with twins, so that those that begin alike are neighbours."""
    found = dict.fromkeys(walks)
    for own in list(found):
        if (other := twin(own)) is not None:
            found[other] = None
    return sorted(found, key=lambda own: (own.setup.flavor != axes.PLAIN, str(own)))
