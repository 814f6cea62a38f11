# SPDX-License-Identifier: Apache-2.0
"""``python tools/forked_tests.py``: runs tests of any tree, each time in a fork of itself.

To import Nova takes most of the time of a run of a few tests, so this process imports it once.
It imports nothing of this repository, and so the fork has the modules of its tree. It reads
questions from standard input and writes answers to standard output, each a line of JSON.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import signal
import sys
import time
import traceback
import unittest
from collections.abc import Mapping
from typing import Any

# What takes the longest of what tests import of other projects. The first decides between threads
# and eventlet, for the fork as well.
_MODULES = (
    "nova.tests.functional",
    "ddt",
    "hypothesis",
    "libvirt",
    "nova.compute.manager",
    "nova.conductor.manager",
    "nova.scheduler.manager",
    "nova.virt.libvirt.driver",
    "openstack.connection",
    "osc_lib.command.command",
    "oslo_privsep.daemon",
    "testtools",
)
_LOOK_AGAIN_S = 0.05


def main() -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()
    with contextlib.suppress(BrokenPipeError):  # the process that asked has ended
        for line in sys.stdin:
            answers.write(json.dumps(_answer(json.loads(line))) + "\n")
            answers.flush()


def _answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Run tests in a fork; return its exit status, ``None`` where it was ended, and its time."""
    pid = os.fork()
    if not pid:
        _run(question)
    ends, ended, status = time.monotonic() + question["clock_s"], 0, 0
    while not ended:
        ended, status, usage = os.wait4(pid, os.WNOHANG)
        if not ended and time.monotonic() > ends:
            os.killpg(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            break
        time.sleep(_LOOK_AGAIN_S)
    with contextlib.suppress(ProcessLookupError):  # what tests have left
        os.killpg(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(status)
    return {"status": None if code < 0 else code, "processor_s": usage.ru_utime + usage.ru_stime}


def _run(question: Mapping[str, Any]) -> None:
    """Run the tests, and end this process."""
    status = 1
    try:
        os.setsid()
        with open(question["output"], "w") as output, open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        most = question["processor_s"]
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))
        os.chdir(question["folder"])
        os.environ.update(question["environ"])
        sys.path[0] = question["folder"]
        argv = ["python -m unittest", *question["arguments"]]
        program = unittest.main(module=None, argv=argv, exit=False, warnings="ignore")
        status = 0 if program.result.wasSuccessful() else 1
    except SystemExit as error:
        status = int(error.code or 0) if isinstance(error.code, int | None) else 1
    except BaseException:  # noqa: BLE001 what a test raises is printed
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
