# SPDX-License-Identifier: Apache-2.0
"""Which tests a part has, which of them are done, and how each ended, said when it ended.

The VM may not live to the end: what ran before is in the file ``done`` and does not run again. The
tests that need a cloud are both parts': each runs the next one that the other has not begun.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import unittest
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

from tests.cloud import running

# The second has the tests that need no cloud before it has one.
CLOUD, HOST = PARTS = ("cloud", "host")
_DONE = "done"
# Beside the parts' folders, one with a file for each test that is begun: it has the part's name.
_BEGUN = "begun"
_NotImported: type = unittest.loader._FailedTest  # type: ignore[attr-defined]


class Result(running.Result):
    """:param on_failure: called before a failure counts: it may be the VM's"""

    def __init__(self, stream: TextIO, out: pathlib.Path, on_failure: Callable[[], None]) -> None:
        super().__init__(stream)
        self._done = out / _DONE
        self._on_failure = on_failure

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._on_failure()
        super().addError(test, err)

    addFailure = addError

    def cloud_failed(self, text: str) -> None:
        """Count as a failure what went wrong with what all tests share."""
        self._on_failure()
        self.errors.append((unittest.FunctionTestCase(self.stop), text))
        self._stream.write(f"{{0}} the cloud of these tests ... FAILED\n{text}\n")
        self._stream.flush()

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        with self._done.open("a") as file:
            file.write(f"{test.id()}\n")


@dataclasses.dataclass(frozen=True, slots=True)
class Left:
    """Of a part, what is not done yet and not begun by the other. ``of_host`` need no cloud."""

    of_host: Sequence[unittest.TestCase]
    of_cloud: Sequence[unittest.TestCase]


def left(part: str, folders: Iterable[str], patterns: Sequence[str], out: pathlib.Path) -> Left:
    """Of the tests below *folders*.

    What stands for a module that cannot be imported is no test of ours, and has to fail with the
    cloud, as it cannot be imported in the VM either.
    """
    from tests.vfio import base

    file = out / _DONE
    done = set(file.read_text().split()) if file.exists() else set()
    tests = [
        test
        for folder in folders
        for test in _flat(running.discover(folder, patterns))
        if test.id() not in done and _begun_by(test, out) in (None, part)
    ]
    needs_cloud = (base.VFIOTestCase, _NotImported)
    return Left(
        of_host=[each for each in tests if part == HOST and not isinstance(each, needs_cloud)],
        of_cloud=[each for each in tests if isinstance(each, needs_cloud)],
    )


def run(tests: Iterable[unittest.TestCase], result: Result, part: str, out: pathlib.Path) -> None:
    """Those of *tests* that no other part begins before."""
    for test in tests:
        if begin(test, part, out):
            test.run(result)


def begin(test: unittest.TestCase, part: str, out: pathlib.Path) -> bool:
    """Whether *test* is *part*'s to run from now on."""
    file = _begun(test, out)
    file.parent.mkdir(exist_ok=True)
    # A link is there with its content, or not at all.
    own = file.parent / part
    own.write_text(part)
    with contextlib.suppress(FileExistsError):
        file.hardlink_to(own)
    return file.read_text() == part


def _begun_by(test: unittest.TestCase, out: pathlib.Path) -> str | None:
    file = _begun(test, out)
    return file.read_text() if file.exists() else None


def _begun(test: unittest.TestCase, out: pathlib.Path) -> pathlib.Path:
    return out.parent / _BEGUN / test.id()


def _flat(suite: Iterable[Any]) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _flat(each)
        else:
            yield each
