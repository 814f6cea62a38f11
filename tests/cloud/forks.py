# SPDX-License-Identifier: Apache-2.0
"""What the tests of a class begin with is set up once, and each of them runs in a fork of it.

Nova's services, their database and hosts take seconds to set up, a fork takes milliseconds. A test
has it to itself all the same: what it changes in memory ends with its process, and the files below
the process's folder for temporary files, databases included, are put back before the next one.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import traceback
import unittest
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing import connection
from typing import Any

import testtools
from futurist import _thread
from oslo_messaging._drivers import base as messaging
from testtools import content

from tests.cloud import process
from tests.fixtures import economy, threads

# How a test ended: a method of a result, and the texts that belong to it, by their names
_Verdict = tuple[str, Mapping[str, str]]

_IDLE_S = 60.0
_POLL_S = 0.02


class NotIdle(Exception):
    """A thread has something to do, which a fork would never see done."""


class RunTest(testtools.RunTest):
    """Runs a test in a fork of what its class's ``setUp`` has made.

    With eventlet, as Nova has it before 2026.2, it does not: its hub does not survive a fork.
    """

    def _run_core(self) -> None:
        if "OS_NOVA_DISABLE_EVENTLET_PATCHING" not in os.environ:
            super()._run_core()
            return
        for name, texts in _prepared(self.case).run(self.case._testMethodName):
            details = {name: content.text_content(text) for name, text in texts.items()}
            getattr(self.result, name)(self.case, details=details)


class _AfterSetUp(testtools.RunTest):
    """The rest of a test. What ``setUp`` has its fixtures undo ends with the process."""

    def _run_core(self) -> None:
        steps = [self.case._run_test_method, self.case._run_teardown]
        passed = [self._run_user(step, self.result) is not self.exception_caught for step in steps]
        passed.append(self._run_cleanups(self.result) is not self.exception_caught)
        if all(passed):
            self.result.addSuccess(self.case, details={})


class _SetUp(testtools.RunTest):
    def _run_core(self) -> None:
        if self._run_user(self.case._run_setup, self.result) is not self.exception_caught:
            self.result.addSuccess(self.case, details={})


class _Verdicts:
    """A result that keeps how a test ended, to be said elsewhere."""

    def __init__(self) -> None:
        self.verdicts: list[_Verdict] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("add"):
            raise AttributeError(name)

        def add(test: Any, *args: Any, details: Mapping[str, content.Content]) -> None:
            texts = {name: "".join(value.iter_text()) for name, value in details.items()}
            self.verdicts.append((name, texts))

        return add

    def startTest(self, test: Any) -> None:
        pass

    def stopTest(self, test: Any) -> None:
        pass


def _verdicts(case: Any, runner: type[testtools.RunTest]) -> Sequence[_Verdict]:
    result = _Verdicts()
    runner(case, case.exception_handlers).run(result)  # type: ignore[arg-type]
    return result.verdicts


class _Prepared:
    """The process in which a class's ``setUp`` has run, seen from the one that runs the tests."""

    def __init__(self, case: Any) -> None:
        self.of = type(case)
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="nova-gpu-class-"))
        self._ours, theirs = connection.Pipe()

        idle = warm(case)

        def serve() -> None:
            self._ours.close()
            start_anew(idle)
            _serve(case, self._folder, theirs)

        self._pid = process.fork(serve)
        theirs.close()
        economy.hold_up_listeners(False)

    def run(self, method: str) -> Sequence[_Verdict]:
        try:
            self._ours.send(method)
            verdicts: Sequence[_Verdict] = self._ours.recv()
        except (EOFError, OSError) as error:
            text = f"the process of {self.of.__qualname__} ended in {method}: {error!r}"
            return [("addError", {"traceback": text})]
        return verdicts

    def end(self) -> None:
        self._ours.close()
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._folder, ignore_errors=True)


_current: _Prepared | None = None


def _prepared(case: Any) -> _Prepared:
    global _current
    if _current is None or _current.of is not type(case):
        end()
        _current = _Prepared(case)
    return _current


def end() -> None:
    """Ends the process that the last test was forked from."""
    global _current
    if _current:
        _current.end()
        _current = None


atexit.register(end)

_warmed: set[type] = set()


def warm(case: Any) -> Sequence[threading.Thread]:
    """What a process imports, compiles and finds out once is there before it is forked. Returns the
    threads that are there as well."""
    if case.WARM_UP not in _warmed:
        result = unittest.TestResult()
        case.WARM_UP("test").run(result)
        if result.errors or result.failures:
            raise AssertionError("".join(text for _, text in result.errors + result.failures))
        _warmed.add(case.WARM_UP)
        gc.collect()
    gc.freeze()
    return quiet()


# In the process of a class


def _serve(case: Any, folder: pathlib.Path, stream: connection.Connection[Any, Any]) -> None:
    own, backup = folder / "now", folder / "kept"
    own.mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(own)
    case._testMethodName = stream.recv()
    failed = [verdict for verdict in _verdicts(case, _SetUp) if verdict[0] != "addSuccess"]
    signal.alarm(0)  # of oslotest's fixture; a fork begins without one
    idle: Sequence[threading.Thread] = ()
    if not failed:
        case._cleanups.clear()
        gc.freeze()  # what a fork's collector looks at it has to copy
        try:
            idle = quiet()
        except NotIdle:
            failed = [("addError", {"traceback": traceback.format_exc()})]
    copy(own, backup)
    with contextlib.suppress(EOFError):
        while True:
            stream.send(failed or _fork(case, idle))
            case._testMethodName = stream.recv()
            shutil.rmtree(own)
            copy(backup, own)


def _fork(case: Any, idle: Iterable[threading.Thread]) -> Sequence[_Verdict]:
    """How the test ended in a process of its own"""
    ours, theirs = connection.Pipe()

    def run() -> None:
        ours.close()
        # Of its own, however long setUp took on a busy machine
        signal.alarm(int(os.environ.get("OS_TEST_TIMEOUT", "0")))
        start_anew(idle)
        theirs.send(_verdicts(case, _AfterSetUp))

    pid = process.fork(run)
    theirs.close()
    try:
        verdicts: Sequence[_Verdict] = ours.recv()
    except EOFError:
        verdicts = []
    _, status = os.waitpid(pid, 0)
    if not verdicts:
        text = f"its process ended with {os.waitstatus_to_exitcode(status)}"
        return [("addError", {"traceback": text})]
    return verdicts


def copy(source: pathlib.Path, target: pathlib.Path) -> None:
    """With FIFOs, links and times as they are"""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def quiet() -> Sequence[threading.Thread]:
    """All threads but this one, when each of them waits for something to do and no database is
    open. Those that listen for messages go on waiting.
    """
    economy.hold_up_listeners(True)
    for worker in list(threads.owners):
        worker.stop_thread()
    deadline = time.monotonic() + _IDLE_S
    quiet = 0
    while quiet < 2:  # twice: a thread may just have been given something
        busy = economy.busy()
        quiet = 0 if busy else quiet + 1
        if busy and time.monotonic() > deadline:
            raise NotIdle(f"still at work after {_IDLE_S:.0f} s: {', '.join(busy)}")
        time.sleep(_POLL_S)
    economy.close_databases()
    return [thread for thread in threading.enumerate() if thread is not threading.current_thread()]


def start_anew(idle: Iterable[threading.Thread]) -> None:
    """Gives each that had one of *idle*, before this process was forked, a thread again."""
    for worker in list(threads.owners):
        worker.start_thread()
    for thread in idle:
        owner = threads.owner(thread)
        if isinstance(thread, _thread.ThreadWorker):
            executor: Any = thread.executor_ref()
            if executor and thread in executor._workers:
                executor._workers.clear()
                executor._work_queue = queue.Queue()
        elif isinstance(owner, messaging.PollStyleListenerAdapter):
            owner._listen_thread = threading.Thread(target=owner._runner, daemon=True)
            owner._listen_thread.start()
        else:
            raise NotIdle(f"{thread.name} cannot be begun anew in a fork")
