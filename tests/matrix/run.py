# SPDX-License-Identifier: Apache-2.0
"""Clouds of several kinds at once, and what is printed of the walks in them."""

from __future__ import annotations

import argparse
import collections
import contextlib
import itertools
import os
import pathlib
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import connection
from typing import Any, TextIO

import yaml

from tests.cloud import running

STREAM = running.begin()

from tests.cloud import forks, oracle, process  # noqa: E402
from tests.functional import base  # noqa: E402
from tests.matrix import axes, branches, expected, plans, tenants, walks  # noqa: E402

_PREFIX = "tests.matrix."
# Walks that are planned at once: those that begin alike are gone together.
_BATCH = 24
# For how many walks one has a call that goes wrong
_CALM = 4
_RECORDED = pathlib.Path(__file__).with_name("recorded.yaml")


class Report:
    """The lines of a run, and its counts."""

    def __init__(self, stream: TextIO, seed: int) -> None:
        self._stream, self._seed = stream, seed
        self._known = expected.load()
        self.happened: set[expected.Expected] = set()
        self.counts: collections.Counter[str] = collections.Counter()
        self._twins: dict[walks.Walk, branches.Found] = {}
        self._seen: dict[walks.Walk, set[tuple[str, str]]] = {}
        self.processor_s = 0.0

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def take(self, found: branches.Found) -> None:
        self.processor_s += found.seconds
        if found.walk.setup.flavor == axes.PLAIN:
            self._twins[found.walk] = found
            if not found.error:
                self.counts["without GPUs"] += 1
                self.say(f"{{0}} {_PREFIX}{found.walk} [{found.seconds:.3f}s] ... ok")
                return
        texts = [found.error] if found.error else [str(each) for each in self._differences(found)]
        name = str(found.walk)
        new = self.unexpected(name, texts)
        status = "FAILED" if new else "ok"
        self.counts["failed" if new else "expected" if texts else "passed"] += 1
        self.say(f"{{0}} {_PREFIX}{name} [{found.seconds:.3f}s] ... {status}")
        if new:
            for text in new:
                self.say(f"    {text}")
            self.say(f"    python -m tests.matrix {name}")

    def unexpected(self, name: str, texts: Iterable[str]) -> list[str]:
        """Return those of the differences of a walk that are not expected."""
        new = []
        for text in texts:
            known = [each for each in self._known if each.covers(name, text)]
            self.happened.update(known)
            if not known:
                new.append(text)
        return new

    def gone(self) -> list[expected.Expected]:
        """Return what is expected and has not happened."""
        return [each for each in self._known if each not in self.happened]

    def _differences(self, found: branches.Found) -> Iterator[oracle.Difference]:
        """Yield what is wrong, but for what is wrong without GPUs as well: that is Nova's."""
        twin = self._twins.get(plans.twin(found.walk) or found.walk)
        kinds = {each.kind for each in twin.differences} if twin else set()
        yield from (each for each in found.differences if each.kind not in kinds)
        yield from found.changed
        if twin is None or twin.is_hit != found.is_hit or twin.error:
            return
        is_refused = found.is_refused and not found.status.startswith("ERROR")
        if not is_refused:
            yield from oracle.same_outcome(twin.instance, found.instance)


class Worker:
    """A cloud of one kind in a process, which gets walks and sends what it finds."""

    def __init__(
        self,
        kind: str,
        deadline: float,
        serve_with: Callable[[branches.Branches, Any], None] | None = None,
    ) -> None:
        self.kind = kind
        self.stream, theirs = connection.Pipe()

        def serve() -> None:
            self.stream.close()
            forks._start_anew(())
            own = branches.Branches(kind, theirs, deadline)
            theirs.send(None)
            with contextlib.suppress(EOFError):
                if serve_with is not None:
                    serve_with(own, theirs)
                while serve_with is None:
                    own.run(theirs.recv())
                    theirs.send(None)
            own.end()

        self.pid = process.fork(serve)
        theirs.close()

    @classmethod
    def for_tenants(cls, kind: str) -> Worker:
        """Return one that does step by step what it is told."""
        return cls(kind, float("inf"), branches.Branches.converse)

    def end(self) -> None:
        self.stream.close()
        os.waitpid(self.pid, 0)


def main(arguments: argparse.Namespace, seed: int) -> int:
    report = Report(STREAM, seed)
    report.say(f"seed {seed}")
    started = time.monotonic()
    kinds = list(arguments.kind or axes.ALL_KINDS)
    if arguments.list:
        for own in plans.in_order(plans.pairs(random.Random(seed), kinds)):
            if arguments.pattern in str(own):
                report.say(str(own))
        return 0
    named = [
        walks.Walk.parse(text.removeprefix(_PREFIX))
        for text in arguments.walks
        if text != "tenants"
    ]
    deadline = started + arguments.seconds
    if named:
        kinds = [*dict.fromkeys(own.setup.kind for own in named)]
        deadline = started + 10**6
    elif arguments.pairs or arguments.calls:
        deadline = started + 10**6
    forks._warm(base.GPUServersTestBase("run"))
    if arguments.walks == ["tenants"]:
        return _tenants(arguments, seed, report, kinds)
    random.Random(seed).shuffle(kinds)
    waiting = [(kind, Source(arguments, kind, seed, named)) for kind in kinds]
    share = (deadline - time.monotonic()) * min(arguments.jobs, len(kinds)) / len(kinds)
    workers: dict[connection.Connection[Any, Any], tuple[Worker, Source, float]] = {}
    failed = False
    while workers or waiting:
        while waiting and len(workers) < arguments.jobs:
            kind, source = waiting.pop(0)
            end = min(deadline, time.monotonic() + share)
            worker = Worker(kind, end)
            workers[worker.stream] = worker, source, end
        for stream in connection.wait(list(workers)):
            worker, source, end = workers[stream]
            try:
                found = stream.recv()
            except EOFError:
                report.say(f"the process of {worker.kind} has ended")
                failed = True
                workers.pop(stream)
                worker.end()
                continue
            if found is not None:
                report.take(found)
                source.heard(found)
                continue
            batch = next(source.batches, None) if time.monotonic() < end else None
            if batch:
                stream.send(batch)
            else:
                workers.pop(stream)
                worker.end()
    if arguments.pairs and not arguments.pattern:
        for each in report.gone():
            report.say(f"no longer happens: {each.why}")
    seconds = time.monotonic() - started
    count = sum(report.counts.values())
    report.say(
        f"{count} walks in {seconds:.0f} s, {60 * count / max(seconds, 1):.0f} per minute: "
        f"{report.counts['passed']} passed, {report.counts['expected']} failed as expected, "
        f"{report.counts['failed']} failed. seed {seed}"
    )
    return int(failed or bool(report.counts["failed"]) or not count)


def _tenants(arguments: argparse.Namespace, seed: int, report: Report, kinds: Sequence[str]) -> int:
    failed = False
    for kind in kinds:
        started = time.monotonic()
        worker = Worker.for_tenants(kind)
        worker.stream.recv()
        own = tenants.Run(
            worker.stream,
            tenants.setups(seed, kind),
            lambda walk, found: report.unexpected(str(walk), map(str, found)),
        )
        tenants.search(own, arguments.steps, arguments.seeds, seed)
        worker.end()
        name = f"{_PREFIX}tenants.{kind}.{seed}"
        status = "FAILED" if own.failed else "ok"
        report.say(f"{{0}} {name} [{time.monotonic() - started:.3f}s] ... {status}")
        report.say(f"    {own.steps} steps")
        if own.failed:
            failed = True
            for text in own.texts:
                report.say(f"    {text}")
            report.say(f"    python -m tests.matrix '{own.failed}'")
    return int(failed)


class Source:
    """Walks in a cloud of one kind, by the dozen."""

    def __init__(
        self, arguments: argparse.Namespace, kind: str, seed: int, named: Sequence[walks.Walk]
    ) -> None:
        self._rng = random.Random(f"{seed} {kind}")
        self._exploration: plans.Exploration | None = None
        self.batches = self._batches(
            arguments, kind, [own for own in named if own.setup.kind == kind]
        )

    def heard(self, found: branches.Found) -> None:
        is_own = found.walk.setup.flavor != axes.PLAIN
        if self._exploration and is_own and not found.error:
            status = found.status.partition(" ")[0]
            self._exploration.take(found.walk, status, found.state, is_odd=found.is_odd)

    def _batches(
        self, arguments: argparse.Namespace, kind: str, named: Sequence[walks.Walk]
    ) -> Iterator[Sequence[walks.Walk]]:
        if named and arguments.explore:
            for setup in dict.fromkeys(own.setup for own in named):
                self._exploration = plans.Exploration(setup)
                yield from map(plans.in_order, self._exploration)
        elif named:
            yield plans.in_order(named)
        elif arguments.triples:
            for setup in plans.setups(self._rng, [kind]):
                self._exploration = plans.Exploration(setup)
                yield from map(plans.in_order, self._exploration)
        else:
            chosen = self._chosen(arguments, kind)
            while batch := list(itertools.islice(chosen, _BATCH)):
                yield plans.in_order(batch)

    def _chosen(self, arguments: argparse.Namespace, kind: str) -> Iterator[walks.Walk]:
        found: Iterable[walks.Walk] = plans.pairs(self._rng, [kind])
        if arguments.calls:
            found = plans.calls(self._rng, [kind])
        elif not arguments.pairs:
            found = _sample(self._rng, kind)
        return (own for own in found if arguments.pattern in str(own))


def _sample(rng: random.Random, kind: str) -> Iterator[walks.Walk]:
    """Yield what is recorded, and then pairs of values with a call that goes wrong now and then."""
    texts = yaml.safe_load(_RECORDED.read_text())
    yield from (own for own in map(walks.Walk.parse, texts) if own.setup.kind == kind)
    going_wrong = plans.calls(rng, [kind], most=1)
    for number, own in enumerate(plans.pairs(rng, [kind])):
        yield own
        if number % _CALM == 0:
            yield from itertools.islice(going_wrong, 1)
