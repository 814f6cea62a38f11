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
from collections.abc import Iterator, Sequence
from multiprocessing import connection
from typing import Any

from tests.cloud import forks, oracle, process
from tests.matrix import clouds, operations, outages, plans
from tests.matrix.stage import Stage
from tests.matrix.walks import Outage, Setup, Step, Walk

# For all that one fork does itself
_LIMIT_S = 300
_MEMORY = pathlib.Path("/dev/shm")
# In which all that is repaired is
_PERIODS = 3

# What tells two states of an instance from each other, for the choice of what is tried in them
State = tuple[object, ...]


@dataclasses.dataclass(frozen=True)
class Found:
    """How a walk ended.

    ``is_refused``: whether the last operation was refused. ``instance``: what the database has of
    the instance at the end. ``state``: its state right after the last operation. ``is_hit``:
    whether the call was made that was to go wrong.
    """

    walk: Walk
    differences: tuple[oracle.Difference, ...] = ()
    status: str = ""
    is_refused: bool = False
    changed: tuple[oracle.Difference, ...] = ()
    instance: Any = None
    state: State = ()
    is_hit: bool = False
    error: str = ""
    seconds: float = 0.0


class Broken(str):
    """Why the process of a walk has ended, in place of an answer."""


class Branches:
    """A cloud of one kind, in a process of its own.

    :param results: takes what is found, in whichever process
    """

    def __init__(self, kind: str, results: connection.Connection[Any, Any]) -> None:
        self._results, self._deadline = results, 0.0
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="nova-gpu-matrix-", dir=_in_memory()))
        self._now = self._folder / "now"
        self._now.mkdir()
        self._tried = self._folder / "tried"
        os.environ["TMPDIR"] = tempfile.tempdir = str(self._now)
        case = clouds.KINDS[kind]("run")
        self._calls = case.useFixture(outages.Calls())
        case.setUp()
        self._stage = Stage(case)
        self._before = oracle.read(case)
        self._quiet_in = 0  # the process that does nothing any more but be forked
        self._then: oracle.Cloud | None = None

    def run(self, walks: Sequence[Walk], deadline: float) -> None:
        """Go *walks*, of which none begins after *deadline*."""
        self._deadline = deadline
        by_setup: dict[Any, list[Walk]] = {}
        for walk in walks:
            by_setup.setdefault(walk.setup, []).append(walk)
        with self._kept("begin") as restore:
            for setup, own in by_setup.items():
                if time.monotonic() > self._deadline:
                    return
                self._fork(own, lambda setup=setup, own=own: self._begin(setup, own), restore)

    def converse(self, stream: connection.Connection[Any, Any]) -> None:
        """Do step by step what comes from *stream*, in a cloud of its own for each beginning.

        The answer to a step in which the walk's process ends is :class:`Broken`.
        """

        def answer(setup: Setup) -> None:
            try:
                self._answer(setup, stream)
            except Exception:
                stream.send(Broken(traceback.format_exc()))

        with self._kept("begin") as restore:
            while (words := stream.recv()) is not None:
                setup = words[1]
                if code := self._fork([], lambda setup=setup: answer(setup), restore):
                    stream.send(Broken(f"its process ended with {code}"))

    def _answer(self, setup: Setup, stream: connection.Connection[Any, Any]) -> None:
        self._stage.begin(setup)
        stream.send(self._stage.statuses())
        while True:
            signal.alarm(_LIMIT_S)
            word, *more = stream.recv()
            if word == "end":
                stream.send(self._settled()[1])
                return
            self._step(more[0], is_last=False)
            differences = list(oracle.differences(self._before, oracle.read(self._stage.cloud)))
            if more[0].operation == "period" and not self._stage.cloud.down:
                differences = self._settled()[1]
            stream.send((self._stage.statuses(), differences))

    def end(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _begin(self, setup: Any, walks: Sequence[Walk]) -> None:
        self._stage.begin(setup)
        self._go(walks, 0)

    def _go(self, walks: Sequence[Walk], depth: int) -> None:
        """*walks* have *depth* steps behind them."""
        walks = [own for walk in walks for own in self._spelled_out(walk, depth)]
        ends = [walk for walk in walks if len(walk.steps) == depth]
        by_step: dict[Step, list[Walk]] = {}
        for walk in walks:
            if len(walk.steps) > depth:
                by_step.setdefault(walk.steps[depth], []).append(walk)
        branches = [(walk,) for walk in ends] + [tuple(own) for own in by_step.values()]
        if len(branches) == 1 and self._quiet_in != os.getpid():
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

    def _spelled_out(self, walk: Walk, depth: int) -> Sequence[Walk]:
        """Return a walk for each call of the next step that may go wrong, if that is meant."""
        step = walk.steps[depth] if len(walk.steps) > depth else None
        if step is None or step.outage is None or step.outage.way != outages.EACH:
            return [walk]
        ours, theirs = connection.Pipe()
        with self._kept("count") as restore:

            def count() -> None:
                counting = dataclasses.replace(step, outage=Outage(outages.Way.COUNT))
                self._step(counting, is_last=False)
                theirs.send(list(self._calls.made))

            self._fork([], count, restore)
        made = ours.recv() if ours.poll() else []
        # A file, because each process goes one branch only.
        tried = self._tried.read_text().splitlines() if self._tried.exists() else []
        walks = plans.with_outages(walk, depth, made, int(step.outage.call or 0), {*tried})
        lines = [*tried, *(plans.tries(own.steps[depth]) for own in walks)]
        self._tried.write_text("\n".join(lines))
        return walks

    # What a process does

    def _step(self, step: Step, *, is_last: bool) -> None:
        operation = operations.OPERATIONS[step.operation]
        self._stage.choose(step.slot)
        self._then = oracle.read(self._stage.cloud) if is_last else None
        outage = step.outage
        way = outages.Way(outage.way) if outage else outages.Way.COUNT
        folder = self._state_folder() if outage else None
        with self._calls.during(way, outage.call if outage else "", folder):
            operation.do(self._stage)
            self._stage.wait()
        self._stage.bury(self._calls)

    def _state_folder(self) -> pathlib.Path | None:
        """Return the folder in which the instance's host keeps what it has to remember."""
        host = self._stage.host() if self._stage.server else None
        return self._stage.cloud.state(host) if host else None

    def _judge(self, walk: Walk) -> Found:
        stage, started = self._stage, time.process_time()
        stage.choose(0)
        uuid = stage.server.get("id", "")
        is_hit = self._calls.is_hit
        now = oracle.read(stage.cloud)
        refused = stage.is_refused() if walk.steps else False
        changed: list[oracle.Difference] = []
        then = self._then.instances.get(uuid) if self._then else None
        after = now.instances.get(uuid)
        has_failed = then is None or after is None or "error" in (then.vm_state, after.vm_state)
        if refused and self._then and not has_failed:
            changed = oracle.unchanged(self._then, now, uuid)
        state = self._state(now, uuid)
        last, differences = self._settled()
        if is_hit:
            stage.recover()
            last, later = self._settled()
            known = {(difference.kind, difference.who) for difference in differences}
            differences += [
                dataclasses.replace(difference, kind=f"{difference.kind} after recovery")
                for difference in later
                if (difference.kind, difference.who) not in known
            ]
        return Found(
            walk,
            tuple(differences),
            stage.status(),
            refused,
            tuple(changed),
            last.instances.get(uuid),
            state,
            is_hit,
            "",
            time.process_time() - started,
        )

    def _state(self, now: oracle.Cloud, uuid: str) -> State:
        own = now.instances.get(uuid)
        if own is None:
            return ()
        amounts = [
            tuple(sorted(provider.allocations[consumer].items()))
            for provider in now.providers.values()
            for consumer in (uuid, *(m.uuid for m in now.migrations.values()))
            if consumer in provider.allocations
        ]
        domains = [
            (name == own.host, host.domains[uuid].is_running, len(host.domains[uuid].devices))
            for name, host in now.hosts.items()
            if uuid in host.domains
        ]
        notes = self._stage.cloud.instance(self._stage.server).system_metadata
        return (
            *(own.vm_state, own.task_state, len(own.devices), len(own.old), len(own.new)),
            *(own.device_count, own.host in self._stage.cloud.down, len(now.instances) > 1),
            tuple(sorted(amounts)),
            tuple(sorted(domains)),
            tuple(sorted(key for key in notes if "image" not in key and "instance_t" not in key)),
            notes.get("image_hw_video_ram"),
        )

    def _settled(self) -> tuple[oracle.Cloud, list[oracle.Difference]]:
        """Return what there is when each host had its periods, and what contradicts itself."""
        self._stage.end()
        for _ in range(_PERIODS):
            self._stage.cloud_period()
            self._stage.wait()
            last = oracle.read(self._stage.cloud)
            differences = [
                _named(last, difference) for difference in oracle.differences(self._before, last)
            ]
            if not differences:
                break
        return last, differences

    # Processes

    @contextlib.contextmanager
    def _kept(self, name: str) -> Iterator[Any]:
        """Yield what puts the files back that are there now."""
        if self._quiet_in != os.getpid():
            self._idle = forks.quiet()
            self._quiet_in = os.getpid()
        backup = self._folder / f"kept-{name}"
        forks.copy(self._now, backup)

        def restore() -> None:
            shutil.rmtree(self._now)
            forks.copy(backup, self._now)

        signal.alarm(0)
        yield restore
        shutil.rmtree(backup)

    def _fork(self, walks: Sequence[Walk], run: Any, restore: Any) -> int:
        """Call *run* in a process of its own, put the files back, and return its exit code."""

        def begin() -> None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_LIMIT_S)
            forks.start_anew(self._idle)
            try:
                run()
            except Exception:
                text = traceback.format_exc()
                if not walks:
                    print(text, flush=True)
                for walk in walks:
                    self._results.send(Found(walk, error=text))

        pid = process.fork(begin)
        _, status = os.waitpid(pid, 0)
        if code := os.waitstatus_to_exitcode(status):
            for walk in walks:
                self._results.send(Found(walk, error=f"its process ended with {code}"))
        restore()
        return code


def _named(cloud: oracle.Cloud, difference: oracle.Difference) -> oracle.Difference:
    """Give what Nova does not do a kind of its own: GPUs are counted, and their host's part not."""
    counted = [provider.allocations.get(difference.who) for provider in cloud.providers.values()]
    if difference.kind == "compute" and any(counted):
        return dataclasses.replace(difference, kind="half")
    return difference


def _in_memory() -> str | None:
    """Return a folder in memory: what is written there need not be waited for, as on a disk."""
    return str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None
