# SPDX-License-Identifier: Apache-2.0
"""Which tests a part has, which of them are done, and how each ended, said when it ended.

The VM may not live to the end: what ran before is in the file ``done`` and does not run again.
"""

from __future__ import annotations

import pathlib
import unittest
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

from tests.cloud import running

CLOUD, HOST = PARTS = ("cloud", "host")
_DONE = "done"


class Result(running.Result):
    """:param on_failure: called before a failure counts: it may be the VM's"""

    failed = False

    def __init__(self, stream: TextIO, out: pathlib.Path, on_failure: Callable[[], None]) -> None:
        super().__init__(unittest.runner._WritelnDecorator(stream), True, 2)
        self._done = out / _DONE
        self._on_failure = on_failure

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._on_failure()
        super().addError(test, err)
        self._show("ERROR", test.id(), self.errors.pop()[1])

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._on_failure()
        super().addFailure(test, err)
        self._show("FAIL", test.id(), self.failures.pop()[1])

    def cloud_failed(self, text: str) -> None:
        """What went wrong with what all tests share"""
        self._on_failure()
        self.stream.write("   0.0 s  cloud ... ERROR\n")
        self._show("ERROR", "the cloud of these tests", text)

    def _show(self, kind: str, name: str, text: str) -> None:
        self.failed = True
        self.stream.write(f"{kind}: {name}\n{text}\n")
        self.stream.flush()

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        with self._done.open("a") as file:
            file.write(f"{test.id()}\n")


def left(part: str, patterns: Iterable[str], out: pathlib.Path) -> unittest.TestSuite:
    """The tests of *part* that are not done yet."""
    from tests.vfio import base

    file = out / _DONE
    done = set(file.read_text().split()) if file.exists() else set()
    return unittest.TestSuite(
        test
        for test in _flat(running.discover("tests/vfio", patterns))
        if test.id() not in done and isinstance(test, base.VFIOTestCase) == (part == CLOUD)
    )


def _flat(suite: Iterable[Any]) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _flat(each)
        else:
            yield each
