# SPDX-License-Identifier: Apache-2.0
"""How the suites that need a machine of their own are run in it."""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
import unittest
import warnings
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TextIO

# What a runner calls: a suite, or anything else that puts tests into a result.
Tests = unittest.TestSuite | Callable[[unittest.TestResult], object]


class Result(unittest.TestResult):
    """A line for each test, as stestr writes it, and below it at once what a failure says."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        # What setUpClass does is no test, and begins without a word.
        self._started = time.monotonic()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._started = time.monotonic()

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self._line(test, "ok")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self._line(test, f"SKIPPED: {reason}")

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self._line(test, "FAILED", self.errors[-1][1])

    addFailure = addError

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self.addError(subtest, err)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        super().addUnexpectedSuccess(test)
        self._line(test, "FAILED", "unexpected success")

    def _line(self, test: unittest.TestCase, status: str, text: str = "") -> None:
        seconds = time.monotonic() - self._started
        self._stream.write(f"{{0}} {test.id()} [{seconds:.1f}s] ... {status}\n{text}")
        self._stream.flush()


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
    loader.testNamePatterns = [_pattern(pattern) for pattern in patterns] or None
    return loader.discover(folder, top_level_dir=".")


def run(suite: Tests, result: Result) -> bool:
    """Whether all went well, and there was something to run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        suite(result)
    return result.wasSuccessful() and result.testsRun > 0


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
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _pattern(text: str) -> str:
    return text if "*" in text else f"*{text}*"
