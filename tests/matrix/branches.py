# SPDX-License-Identifier: Apache-2.0
"""Walks that begin alike are gone together as far as that, and then each in a fork.

So a state is reached once for all that is tried in it. What a fork changes in memory ends with its
process; the files of its cloud are put back before the next one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any

from tests.cloud import forks, oracle, process
from tests.fixtures import economy
from tests.matrix import clouds, operations, outages
from tests.matrix.stage import Stage
from tests.matrix.walks import Step, Walk

# For all that one fork does itself
_LIMIT_S = 150
# In which all that is repaired is
_PERIODS = 3


@dataclasses.dataclass(frozen=True)
class Found:
    """How a walk ended.

    ``is_refused``: whether the last operation was refused. ``instance``: what the database has of
    the instance at the end. ``calls``: those of the last operation that a failure could hit.
    """

    walk: Walk
    differences: tuple[oracle.Difference, ...] = ()
    status: str = ""
    is_refused: bool = False
    changed: tuple[oracle.Difference, ...] = ()
    instance: Any = None
    calls: tuple[str, ...] = ()
    hit: str = ""
    error: str = ""
    seconds: float = 0.0


class Branches:
    """A cloud of one kind, in a process of its own.

    :param results: takes what is found, in whichever process
    """

    def __init__(
        self, kind: str, results: connection.Connection[Any, Any], deadline: float
    ) -> None:
        self._results, self._deadline = results, deadline
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="nova-gpu-matrix-"))
        self._now = self._folder / "now"
        self._now.mkdir()
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._now)
        case = clouds.KINDS[kind]("run")
        self._calls = case.useFixture(outages.Calls())
        case.setUp()
        self._stage = Stage(case)
        self._before = oracle.read(case)
        self._then: oracle.Cloud | None = None

    def run(self, walks: Sequence[Walk]) -> None:
        by_setup: dict[Any, list[Walk]] = {}
        for walk in walks:
            by_setup.setdefault(walk.setup, []).append(walk)
        with self._kept("begin") as restore:
            for setup, own in by_setup.items():
                if time.monotonic() > self._deadline:
                    return
                self._fork(own, lambda setup=setup, own=own: self._begin(setup, own), restore)

    def end(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, setup: Any, walks: Sequence[Walk]) -> None:
        self._stage.begin(setup)
        self._go(walks, 0)

    def _go(self, walks: Sequence[Walk], depth: int) -> None:
        """*walks* have *depth* steps behind them."""
        ends = [walk for walk in walks if len(walk.steps) == depth]
        by_step: dict[Step, list[Walk]] = {}
        for walk in walks:
            if len(walk.steps) > depth:
                by_step.setdefault(walk.steps[depth], []).append(walk)
        branches = [(walk,) for walk in ends] + [tuple(own) for own in by_step.values()]
        if len(branches) == 1:
            self._branch(branches[0], depth)
            return
        with self._kept(str(depth)) as restore:
            for own in branches:
                if time.monotonic() > self._deadline:
                    return
                self._fork(own, lambda own=own: self._branch(own, depth), restore)

    def _branch(self, walks: Sequence[Walk], depth: int) -> None:
        if len(walks[0].steps) == depth:
            self._results.send(self._judge(walks[0]))
            return
        self._step(walks[0].steps[depth], is_last=all(len(w.steps) == depth + 1 for w in walks))
        self._go(walks, depth + 1)

    # What a process does

    def _step(self, step: Step, *, is_last: bool) -> None:
        operation = operations.OPERATIONS[step.operation]
        self._then = oracle.read(self._stage.cloud) if is_last else None
        outage = step.outage
        way = outages.Way(outage.way) if outage else outages.Way.COUNT
        with self._calls.during(way, outage.number if outage else 0):
            operation.do(self._stage)
            self._stage.wait()
        self._stage.bury(self._calls)

    def _judge(self, walk: Walk) -> Found:
        stage, started = self._stage, time.process_time()
        uuid = stage.server.get("id", "")
        calls = tuple(self._calls.made)
        number = walk.steps[-1].outage.number if walk.steps and walk.steps[-1].outage else 0
        now = oracle.read(stage.cloud)
        refused = stage.is_refused() if walk.steps else False
        changed = ()
        then = self._then.instances.get(uuid) if self._then else None
        if refused and then and uuid in now.instances and then.vm_state != "error":
            changed = tuple(oracle.unchanged(self._then, now, uuid))
        last, found = self._settled()
        if number:
            stage.recover()
            last, later = self._settled()
            known = {(each.kind, each.who) for each in found}
            found += [
                dataclasses.replace(each, kind=f"{each.kind} after recovery")
                for each in later
                if (each.kind, each.who) not in known
            ]
        return Found(
            walk,
            tuple(found),
            stage.status(),
            refused,
            changed,
            last.instances.get(uuid),
            calls,
            calls[number - 1] if 0 < number <= len(calls) else "",
            "",
            time.process_time() - started,
        )

    def _settled(self) -> tuple[oracle.Cloud, list[oracle.Difference]]:
        """Return what there is when each host had its periods, and what contradicts itself."""
        self._stage.end()
        for _ in range(_PERIODS):
            self._stage.cloud_period()
            self._stage.wait()
            last = oracle.read(self._stage.cloud)
            found = oracle.differences(self._before, last)
            if not found:
                break
        return last, found

    # Processes

    @contextlib.contextmanager
    def _kept(self, name: str) -> Iterator[Any]:
        """Yield what puts the files back that are there now."""
        self._idle = forks._quiet()
        kept = self._folder / f"kept-{name}"
        forks._copy(self._now, kept)

        def restore() -> None:
            shutil.rmtree(self._now)
            forks._copy(kept, self._now)

        signal.alarm(0)
        yield restore
        shutil.rmtree(kept)

    def _fork(self, walks: Sequence[Walk], run: Any, restore: Any) -> None:
        def begin() -> None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_LIMIT_S)
            forks._start_anew(self._idle)
            try:
                run()
            except Exception:
                text = traceback.format_exc()
                for walk in walks:
                    self._results.send(Found(walk, error=text))

        pid = process.fork(begin)
        _, status = os.waitpid(pid, 0)
        if code := os.waitstatus_to_exitcode(status):
            for walk in walks:
                self._results.send(Found(walk, error=f"its process ended with {code}"))
        restore()
