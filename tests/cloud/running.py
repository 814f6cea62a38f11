# SPDX-License-Identifier: Apache-2.0
"""How the suites that need a machine of their own are run in it."""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
import unittest
from collections.abc import Callable, Iterable
from typing import NoReturn, TextIO

# What a runner calls: a suite, or anything else that puts tests into a result.
Tests = unittest.TestSuite | Callable[[unittest.TestResult], object]


class Result(unittest.TextTestResult):
    """One line for each test, its seconds first."""

    def startTest(self, test: unittest.TestCase) -> None:
        unittest.TestResult.startTest(self, test)
        self._started = time.monotonic()

    def _write_status(self, test: unittest.TestCase, status: str) -> None:
        seconds = time.monotonic() - self._started
        self.stream.write(f"{seconds:6.1f} s  {self.named(test)} ... {status}\n")
        self.stream.flush()

    def named(self, test: unittest.TestCase) -> str:
        return test.id().removeprefix("tests.").partition(".")[2]


def own_output() -> TextIO:
    """Standard output, which nothing else that is printed goes to any more."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return stream


def begin() -> TextIO:
    """To be called before Nova is imported: :func:`own_output`, without Nova's log."""
    stream = own_output()
    # Nova 2026.2 decides between threads and eventlet on the first import of its tests.
    os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "1")
    gc.disable()  # of some thousand modules that are imported none is garbage
    import nova.tests.functional  # noqa: F401

    from tests.fixtures import economy

    economy.economize()
    economy.economize_apis()
    gc.freeze()
    gc.enable()
    return stream


def discover(folder: str, patterns: Iterable[str]) -> unittest.TestSuite:
    """The tests below *folder*; *patterns* are as unittest reads its ``-k``."""
    loader = unittest.TestLoader()
    loader.testNamePatterns = [_pattern(each) for each in patterns] or None
    return loader.discover(folder, top_level_dir=".")


def run(suite: Tests, stream: TextIO, result: type[Result] = Result) -> bool:
    """Whether all went well."""
    runner = unittest.TextTestRunner(stream=stream, verbosity=2, warnings="ignore")
    runner.resultclass = result
    passed = runner.run(suite).wasSuccessful()  # type: ignore[arg-type]
    stream.flush()
    return passed


def leave(main: Callable[[], int]) -> NoReturn:
    """Ends the process with what *main* returns: libvirt's event thread never ends, and Python
    would wait for it."""
    try:
        status = main()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1 if error.code else 0
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status)


def _pattern(text: str) -> str:
    return text if "*" in text else f"*{text}*"
