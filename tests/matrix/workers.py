# SPDX-License-Identifier: Apache-2.0
"""Processes that have a cloud of one kind each, and get walks to go."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import connection
from typing import Any

from tests.cloud import forks, process
from tests.matrix import axes
from tests.matrix.branches import Branches, Found
from tests.matrix.walks import Walk

# A worker's answer after the last that it has found of a batch, and the order to end
DONE = END = None
# The order to do single steps until the next END, as :meth:`Branches.converse` has them
CONVERSE = "converse"
_NEVER = float("inf")


@dataclasses.dataclass(frozen=True)
class Source:
    """The walks for a cloud of one *kind*, by the dozen; *take* hears what each has led to."""

    kind: str
    batches: Iterator[Sequence[Walk]]
    take: Callable[[Found], None]


@dataclasses.dataclass(frozen=True)
class Worker:
    pid: int
    stream: connection.Connection[Any, Any]

    @classmethod
    def start(cls, kind: str) -> Worker:
        """Fork a process with a cloud of that *kind*, which says :data:`DONE` when it has it."""
        ours, theirs = connection.Pipe()

        def serve() -> None:
            ours.close()
            forks.start_anew(())
            own = Branches(kind, theirs)
            theirs.send(DONE)
            while (order := theirs.recv()) is not END:
                if order == CONVERSE:
                    own.converse(theirs)
                else:
                    own.run(*order)
                theirs.send(DONE)
            own.end()

        pid = process.fork(serve)
        theirs.close()
        return cls(pid, ours)

    @contextlib.contextmanager
    def conversing(self) -> Iterator[connection.Connection[Any, Any]]:
        """Yield the stream that takes single steps. The process has no walks to go meanwhile."""
        self.stream.send(CONVERSE)
        yield self.stream
        self.stream.send(END)
        self.stream.recv()

    def end(self) -> bool:
        """Return whether it ended well."""
        with contextlib.suppress(OSError):  # it has ended
            self.stream.send(END)
        self.stream.close()
        return os.waitpid(self.pid, 0)[1] == 0


def work(
    sources: Iterable[Source],
    jobs: int,
    deadline: float,
    report: Callable[[Found], Walk | None],
    last: Callable[[str, Worker], None] | None = None,
) -> bool:
    """Let the walks of *sources* be gone, those of so many at once.

    :param report: takes what is found, and returns what to compare it with, if it is not known
    :param last: takes each kind with its process when all its walks are gone
    :returns: whether all processes ended well
    """
    waiting = list(sources)
    share = (deadline - time.monotonic()) * min(jobs, len(waiting)) / len(waiting)
    busy: dict[Any, _Busy] = {}
    is_well = True
    while busy or waiting:
        while waiting and len(busy) < jobs:
            source, end = waiting.pop(0), min(deadline, time.monotonic() + share)
            worker = Worker.start(source.kind)
            busy[worker.stream] = _Busy(worker, source, end)
        for stream in connection.wait(busy):
            own = busy[stream]
            try:
                outcome = own.worker.stream.recv()
            except EOFError:
                batch, own.has_ended = None, True
            else:
                if outcome is not DONE:
                    own.take(outcome, report(outcome))
                    continue
                batch = own.batch()
            if batch:
                own.worker.stream.send(batch)
            else:
                del busy[stream]
                if last and not own.has_ended:
                    last(own.source.kind, own.worker)
                is_well = own.worker.end() and is_well
    return is_well


@dataclasses.dataclass
class _Busy:
    """A worker, and what it has to do. ``twins``: what others are to be compared with."""

    worker: Worker
    source: Source
    end: float
    twins: list[Walk] = dataclasses.field(default_factory=list)
    has_ended: bool = False

    def take(self, outcome: Found, twin: Walk | None) -> None:
        if twin is not None:
            self.twins.append(twin)
        if outcome.walk.setup.flavor != axes.PLAIN:
            self.source.take(outcome)

    def batch(self) -> tuple[Sequence[Walk], float] | None:
        """Return the next walks with the time at which none of them begins any more."""
        if self.twins:
            twins, self.twins = sorted(set(self.twins), key=str), []
            return twins, _NEVER
        if time.monotonic() > self.end:
            return None
        walks = next(self.source.batches, None)
        return (walks, self.end) if walks else None
