# SPDX-License-Identifier: Apache-2.0
"""Clouds of several kinds at once, and what is printed of the walks in them."""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing import connection
from typing import Any, TextIO

from tests.cloud import running

STREAM = running.begin()

from tests.cloud import forks, oracle, process  # noqa: E402
from tests.functional import base  # noqa: E402
from tests.matrix import axes, branches, expected, outages, plans, walks  # noqa: E402

_PREFIX = "tests.matrix."
# Walks that are planned at once: those that begin alike are gone together.
_BATCH = 24


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
        texts = [found.error] if found.error else [str(each) for each in self._differences(found)]
        name = str(found.walk)
        new = []
        for text in texts:
            known = [each for each in self._known if each.covers(name, text)]
            self.happened.update(known)
            if not known:
                new.append(text)
        status = "FAILED" if new else "ok"
        self.counts["failed" if new else "expected" if texts else "passed"] += 1
        self.say(f"{{0}} {_PREFIX}{name} [{found.seconds:.3f}s] ... {status}")
        if new:
            if found.hit:
                self.say(f"    the call that went wrong: {found.hit}")
            for text in new:
                self.say(f"    {text}")
            self.say(f"    python -m tests.matrix -k '{name}'")

    def _differences(self, found: branches.Found) -> Iterator[oracle.Difference]:
        yield from found.differences
        yield from found.changed
        twin = plans.twin(found.walk)
        if twin is None or twin not in self._twins or found.is_refused and not found.changed:
            if not (found.is_refused and found.status.startswith("ERROR") and twin in self._twins):
                return
        yield from oracle.same_outcome(self._twins[twin].instance, found.instance)


class Worker:
    """A cloud of one kind in a process, which gets walks and sends what it finds."""

    def __init__(self, kind: str, deadline: float) -> None:
        self.kind = kind
        self.stream, theirs = connection.Pipe()

        def serve() -> None:
            self.stream.close()
            forks._start_anew(())
            own = branches.Branches(kind, theirs, deadline)
            theirs.send(None)
            try:
                while True:
                    own.run(theirs.recv())
                    theirs.send(None)
            except EOFError:
                own.end()

        self.pid = process.fork(serve)
        theirs.close()

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
    exact = _parsed(arguments.pattern)
    deadline = started + arguments.seconds
    if exact:
        kinds, deadline = [exact.setup.kind], started + 3600
    elif arguments.pairs or arguments.calls:
        deadline = started + 10**6
    forks._warm(base.GPUServersTestBase("run"))
    random.Random(seed).shuffle(kinds)
    waiting = [(kind, _batches(arguments, kind, seed, exact)) for kind in kinds]
    share = (deadline - time.monotonic()) * min(arguments.jobs, len(kinds)) / len(kinds)
    workers: dict[connection.Connection[Any, Any], tuple[Worker, Iterator[Any], float]] = {}
    failed = False
    while workers or waiting:
        while waiting and len(workers) < arguments.jobs:
            kind, batches = waiting.pop(0)
            end = min(deadline, time.monotonic() + share)
            worker = Worker(kind, end)
            workers[worker.stream] = worker, batches, end
        for stream in connection.wait(list(workers)):
            worker, batches, end = workers[stream]
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
                continue
            batch = next(batches, None) if time.monotonic() < end else None
            if batch:
                stream.send(batch)
            else:
                workers.pop(stream)
                worker.end()
    seconds = time.monotonic() - started
    count = sum(report.counts.values())
    report.say(
        f"{count} walks in {seconds:.0f} s, {60 * count / max(seconds, 1):.0f} per minute: "
        f"{report.counts['passed']} passed, {report.counts['expected']} failed as expected, "
        f"{report.counts['failed']} failed. seed {seed}"
    )
    return int(failed or bool(report.counts["failed"]) or not count)


def _parsed(pattern: str) -> walks.Walk | None:
    """Return the walk that *pattern* is the whole name of."""
    try:
        own = walks.Walk.parse(pattern.removeprefix(_PREFIX))
    except ValueError:
        return None
    return own if own.setup.kind in axes.ALL_KINDS else None


def _batches(
    arguments: argparse.Namespace, kind: str, seed: int, exact: walks.Walk | None
) -> Iterator[Sequence[walks.Walk]]:
    """Yield walks in a cloud of that *kind*, by the dozen."""
    if exact:
        yield plans.in_order([exact])
        return
    rng = random.Random(f"{seed} {kind}")
    source = plans.triples(rng, [kind]) if arguments.triples else plans.pairs(rng, [kind])
    chosen = (own for own in source if arguments.pattern in str(own))
    while batch := list(itertools.islice(chosen, _BATCH)):
        yield plans.in_order(batch)
