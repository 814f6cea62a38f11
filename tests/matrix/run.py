# SPDX-License-Identifier: Apache-2.0
"""What ``python -m tests.matrix`` does, with Nova imported and its output out of the way."""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import pathlib
import random
import time
from collections.abc import Iterator, Sequence

import yaml

from tests.cloud import running

STREAM = running.begin()

from tests.cloud import forks  # noqa: E402
from tests.functional import base  # noqa: E402
from tests.matrix import axes, plans, report, tenants, walks, workers  # noqa: E402

TENANTS = "tenants"
_RECORDED = pathlib.Path(__file__).with_name("recorded.yaml")
# Walks that are planned at once: those that begin alike are gone together.
_BATCH = 24
# For how many walks one has a call that goes wrong
_CALM = 4
# For how long one of a sample that has failed is gone and made shorter
_SHRINK_S = 60


def main(arguments: argparse.Namespace, seed: int) -> int:
    own = report.Report(STREAM, seed, _recorded())
    own.say(f"seed {seed}")
    started = time.monotonic()
    kinds = list(arguments.kind or axes.ALL_KINDS)
    if arguments.list:
        for walk in sorted(plans.pairs(random.Random(seed), kinds), key=str):
            if arguments.pattern in str(walk):
                own.say(str(walk))
        return 0
    forks.warm(base.GPUServersTestBase("run"))
    names = [] if arguments.walks == [TENANTS] else arguments.walks
    named = [walks.Walk.parse(text.removeprefix(report.PREFIX)) for text in names]
    if named:
        kinds = [*dict.fromkeys(walk.setup.kind for walk in named)]
    deadline = started + arguments.seconds
    random.Random(seed).shuffle(kinds)
    sources = [_source(arguments, kind, seed, named) for kind in kinds]
    has_tenants = arguments.walks == [TENANTS] or (arguments.with_tenants and not arguments.pattern)
    last = functools.partial(_let_tenants_act, arguments, own) if has_tenants else None
    is_well = workers.work(sources, arguments.jobs, deadline, own.take, last)
    is_passed = own.close(time.monotonic() - started)
    return int(not (is_well and is_passed))


def _source(
    arguments: argparse.Namespace, kind: str, seed: int, named: Sequence[walks.Walk]
) -> workers.Source:
    if arguments.walks == [TENANTS]:
        return workers.Source(kind, iter(()), lambda outcome: None)
    rng = random.Random(f"{seed} {kind}")
    own = [walk for walk in named if walk.setup.kind == kind]
    if arguments.triples or arguments.explore:
        setups = iter(dict.fromkeys(walk.setup for walk in own))
        explorations = plans.Explorations(setups if own else plans.setups(rng, [kind]))
        return workers.Source(kind, iter(explorations), explorations.take)
    if own:
        return workers.Source(kind, iter([own]), lambda outcome: None)
    chosen = (walk for walk in _chosen(arguments, rng, kind) if arguments.pattern in str(walk))
    batches = iter(lambda: list(itertools.islice(chosen, _BATCH)), [])
    return workers.Source(kind, batches, lambda outcome: None)


def _chosen(arguments: argparse.Namespace, rng: random.Random, kind: str) -> Iterator[walks.Walk]:
    if arguments.calls:
        return plans.calls(rng, [kind])
    return plans.pairs(rng, [kind]) if arguments.pairs else _sample(rng, kind)


def _sample(rng: random.Random, kind: str) -> Iterator[walks.Walk]:
    """Yield what is recorded, and then pairs of values with a call that goes wrong now and then."""
    yield from (walk for walk in _recorded() if walk.setup.kind == kind)
    going_wrong = plans.calls(rng, [kind], most=1)
    for number, walk in enumerate(plans.pairs(rng, [kind])):
        yield walk
        if number % _CALM == 0:
            yield from itertools.islice(going_wrong, 1)


def _recorded() -> Sequence[walks.Walk]:
    return [walks.Walk.parse(text) for text in yaml.safe_load(_RECORDED.read_text())]


def _let_tenants_act(
    arguments: argparse.Namespace, own: report.Report, kind: str, worker: workers.Worker
) -> None:
    started = time.monotonic()
    with worker.conversing() as stream:
        shrink_s = _SHRINK_S if arguments.with_tenants else math.inf
        search = tenants.Search(stream, tenants.setups(own.seed, kind), shrink_s)
        tenants.search(search, arguments.steps, arguments.seeds, own.seed)
    notes = [f"{search.steps} steps, {search.begun} times from the beginning"]
    seconds = time.monotonic() - started
    own.ended(f"{TENANTS}.{kind}", seconds, notes, search.texts, search.failed)
