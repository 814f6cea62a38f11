# SPDX-License-Identifier: Apache-2.0
"""Which tests are left, and how each ended, said when it ended.

The VM may not live to the end: what ran before is in the file ``done`` and does not run again.
"""

from __future__ import annotations

import dataclasses
import pathlib
import unittest
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

from tests.cloud import running

# A line for each test: its id, and behind it whether it failed
_DONE = "done"
_FAILED = " FAILED"
_NotImported: type = unittest.loader._FailedTest  # type: ignore[attr-defined]


class Result(running.Result):
    """:param on_failure: called before a failure counts: it may be the VM's"""

    def __init__(self, stream: TextIO, out: pathlib.Path, on_failure: Callable[[], None]) -> None:
        super().__init__(stream)
        self._done = out / _DONE
        self._on_failure = on_failure
        self._ending = ""

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._ending = ""

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._on_failure()
        self._ending = _FAILED
        super().addError(test, err)

    addFailure = addError

    def cloud_failed(self, text: str) -> None:
        """Count as a failure what went wrong with what all tests share."""
        self._on_failure()
        self._note(f"cloud{_FAILED}")
        self._stream.write(f"{{0}} the cloud of these tests ... FAILED\n{text}\n")
        self._stream.flush()

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self._note(f"{test.id()}{self._ending}")

    def _note(self, line: str) -> None:
        with self._done.open("a") as file:
            file.write(f"{line}\n")


@dataclasses.dataclass(frozen=True, slots=True)
class Left:
    """What is not done yet. ``of_host`` need no cloud."""

    of_host: Sequence[unittest.TestCase]
    of_cloud: Sequence[unittest.TestCase]


def left(folders: Iterable[str], patterns: Sequence[str], out: pathlib.Path) -> Left:
    """Of the tests below *folders*.

    What stands for a module that cannot be imported is no test of ours, and has to fail with the
    cloud, as it cannot be imported in the VM either.
    """
    from tests.vfio import base

    done = {line.removesuffix(_FAILED) for line in _lines(out)}
    tests = [
        test
        for folder in folders
        for test in _flat(running.discover(folder, patterns))
        if test.id() not in done
    ]
    needs_cloud = (base.VFIOTestCase, _NotImported)
    return Left(
        of_host=[test for test in tests if not isinstance(test, needs_cloud)],
        of_cloud=[test for test in tests if isinstance(test, needs_cloud)],
    )


def counts(out: pathlib.Path) -> tuple[int, int]:
    """Return how many tests have ended, and how many of them failed."""
    lines = _lines(out)
    return len(lines), sum(line.endswith(_FAILED) for line in lines)


def _lines(out: pathlib.Path) -> list[str]:
    file = out / _DONE
    return file.read_text().splitlines() if file.exists() else []


def _flat(suite: Iterable[Any]) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test
