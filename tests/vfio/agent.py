# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.vfio.agent PORT [TEST ...]``, in the VM: what the tests, outside, want of it.

First it runs the tests that need no cloud, whose ids it is given. Then it starts and ends
nova-compute, which talks to the rest of the cloud by itself, and calls functions of this
repository: the tests' own eyes and hands on the host.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import os
import signal
import sys
import traceback
import unittest
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from typing import Any, NoReturn, TextIO
from unittest import mock

from tests.cloud import compute, process, running, wire  # before anything else of Nova

# isort: split

import nova.privsep.qemu
from nova import config, rpc

from lab.vm import OUTSIDE
from nova_gpu.cmd import gpu
from nova_gpu.conf import CONF
from tests.vfio import containers, images, place, progress

# What a command of nova-gpu has printed
_OUTPUT = place.STATE / "command.log"


class Agent:
    def __init__(self, port: int) -> None:
        self._address = (OUTSIDE, port)
        self._compute: int | None = None
        self._command: int | None = None

    def serve(self) -> None:
        """Until it is told to end, or whom it serves has ended."""
        verbs: Mapping[str, Callable[..., Any]] = {
            "start": self._start,
            "has_compute": self._has_compute,
            "kill": self._kill,
            "begin_command": self._begin_command,
            "has_command": self._has_command,
            "end_command": self._end_command,
            "call": _call,
        }
        stream = self._connect()
        stream.send("agent")
        while (question := stream.recv()) is not None:
            verb, *arguments = question
            try:
                answer = verbs[verb](*arguments)
            except Exception:
                answer = wire.Failed(traceback.format_exc())
            stream.send(answer)

    def _connect(self) -> connection.Connection[Any, Any]:
        return connection.Client(self._address, authkey=os.environ[place.KEY].encode())

    def _start(self, configuration: str, beside: int | None) -> None:
        """:param beside: the pid whose view of the file system nova-compute is to have"""
        place.STATE.mkdir(mode=0o711, exist_ok=True)
        place.INSTANCES.mkdir(exist_ok=True)
        place.CONFIGURATION.write_text(configuration)
        arguments = ["nova-compute", "--config-file", str(place.CONFIGURATION)]
        # What is called here reads the same options.
        compute.CONF.clear()
        config.parse_args(arguments, configure_db=False, init_rpc=False)
        service = compute.Compute(images.serve)

        def run() -> None:
            if beside is not None:
                containers.enter(beside)
            service.run(arguments, self._connect)

        self._compute = process.fork(run)

    def _has_compute(self) -> bool:
        if self._compute is not None and os.waitpid(self._compute, os.WNOHANG)[0]:
            self._compute = None
        return self._compute is not None

    def _kill(self) -> None:
        if self._compute is not None:
            os.kill(self._compute, signal.SIGKILL)
            os.waitpid(self._compute, 0)
            self._compute = None

    def _begin_command(self, configuration: str, words: Sequence[str], killed_after: str) -> None:
        """Begin a command of nova-gpu, which talks to the cloud as nova-compute does."""
        place.CONFIGURATION.write_text(configuration)
        self._command = process.fork(lambda: _run_command(words, self._connect, killed_after))

    def _has_command(self) -> bool:
        assert self._command is not None
        return os.waitid(os.P_PID, self._command, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def _end_command(self) -> tuple[int, str]:
        """Wait for the command, and return its exit status and what it has printed."""
        assert self._command is not None
        _, status = os.waitpid(self._command, 0)
        return os.waitstatus_to_exitcode(status), _OUTPUT.read_text()


def _run_command(
    words: Sequence[str],
    connect: Callable[[], connection.Connection[Any, Any]],
    killed_after: str,
) -> NoReturn:
    """Run ``nova-gpu`` with these *words* and nova-compute's options, and end this process.

    :param connect: opens the stream that stands in for a broker
    :param killed_after: as for :meth:`tests.vfio.cloud.Cloud.command`
    """
    file = os.open(_OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(file, number)
    compute.join_bus(connect(), {})
    CONF.clear()  # of what the process that was forked had read
    if killed_after:
        builtins.print = functools.partial(_print_and_die, print, killed_after)
    with mock.patch.object(rpc, "init"):  # there is no broker
        status = gpu.main(["nova-gpu", "--config-file", str(place.CONFIGURATION), *words])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _print_and_die(write: Callable[..., None], last: str, *texts: Any, **words: Any) -> None:
    write(*texts, **words)
    if any(last in str(text) for text in texts):
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)


def _call(module: str, name: str, *arguments: Any) -> Any:
    return getattr(importlib.import_module(module), name)(*arguments)


def _spare_the_processor() -> None:
    """It is emulated. Nova has a Python started for every look at a disk, seven of them at every
    spawn, only to limit what qemu-img may take."""
    nova.privsep.qemu.QEMU_IMG_LIMITS = None


def _run_before(tests: Sequence[str], stream: TextIO) -> None:
    """Run the tests with these ids.

    In a process of their own: what they change of it nova-compute does not inherit. Which are left
    is known outside: to find out, all of them and so the cloud's side of Nova would have to be
    imported, by an emulated processor.
    """
    result = progress.Result(stream, place.LOG.parent, lambda: None)
    load = unittest.TestLoader().loadTestsFromNames
    _, status = os.waitpid(process.fork(lambda: load(tests).run(result)), 0)
    if status:
        sys.exit("the tests that need no cloud came to no end")


if __name__ == "__main__":
    _spare_the_processor()
    output = running.own_output()
    if sys.argv[2:]:
        _run_before(sys.argv[2:], output)
    nova.privsep.sys_admin_pctxt.set_client_mode(False)  # it is root already
    Agent(int(sys.argv[1])).serve()
