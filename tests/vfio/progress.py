# SPDX-License-Identifier: Apache-2.0
"""Which tests a part has, which of them are done, and how each ended, said when it ended.

The VM may not live to the end: what ran before is in the file ``done`` and does not run again. The
tests that need a cloud are those of two parts: each runs the next one that the other has not begun.
"""

from __future__ import annotations

import contextlib
import pathlib
import unittest
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

from tests.cloud import running
from tests.vfio import place

CLOUD, HOST, SECOND_CLOUD = PARTS = ("cloud", "host", "second-cloud")
_DONE = "done"
# Beside the parts' folders, one with a file for each test that is begun: it has the part's name.
_BEGUN = "begun"


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


def left(
    part: str, folder: str, patterns: Iterable[str], out: pathlib.Path
) -> list[unittest.TestCase]:
    """The tests below *folder* that are *part*'s, not done yet, and not begun by another.

    Only of the host's some need no cloud. What stands for a module that cannot be imported is no
    test of ours, and has to fail with whoever is there.
    """
    from tests.vfio import base

    file = out / _DONE
    done = set(file.read_text().split()) if file.exists() else set()
    return [
        test
        for test in _flat(running.discover(folder, patterns))
        if test.id() not in done
        and (folder != place.TESTS or isinstance(test, base.VFIOTestCase)) == (part != HOST)
        and _begun_by(test, out) in (None, part)
    ]


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
