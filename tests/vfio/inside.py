# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.vfio.inside PART [PATTERN ...]``: a part of the tests, in a VM.

The tests of the part ``cloud`` share one cloud: under emulation it takes half a minute to come up.
Those of the part ``host`` need none. What ran before a panic of the VM is not run again; /out/done
has the names.
"""

from __future__ import annotations

import os
import pathlib
import sys
import traceback
import unittest
from collections.abc import Iterable, Iterator
from typing import Any

from tests.cloud import running

PARTS = ("cloud", "host")
OUT = pathlib.Path("/out")
_DONE = OUT / "done"


class Result(running.Result):
    """A failure is shown when it happens: the VM may not live to its end."""

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self._show("ERROR", test, self.errors.pop()[1])

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self._show("FAIL", test, self.failures.pop()[1])

    def _show(self, kind: str, test: unittest.TestCase, text: str) -> None:
        self.failed = True
        self.stream.write(f"{kind}: {test.id()}\n{text}\n")
        self.stream.flush()

    failed = False

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        with _DONE.open("a") as file:
            file.write(f"{test.id()}\n")


def main() -> int:
    stream = running.begin()
    from tests.vfio import base, cloud

    part, *patterns = sys.argv[1:]
    done = set(_DONE.read_text().split()) if _DONE.exists() else set()
    suite = unittest.TestSuite(
        test
        for test in _flat(running.discover("tests/vfio", patterns))
        if test.id() not in done and isinstance(test, base.VFIOTestCase) == (part == PARTS[0])
    )
    result = Result(unittest.runner._WritelnDecorator(stream), True, 2)  # type: ignore[attr-defined]
    if part == PARTS[0] and suite.countTestCases():
        for text in cloud.run(lambda: suite.run(result), OUT / "nova.log"):
            stream.write(f"   0.0 s  cloud ... ERROR\nERROR: the cloud of these tests\n{text}\n")
            result.failed = True
    else:
        suite.run(result)
    stream.flush()
    return 1 if result.failed else 0


def _flat(suite: Iterable[Any]) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _flat(each)
        else:
            yield each


if __name__ == "__main__":
    try:
        status = main()
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    # libvirt's event thread never ends, and Python would wait for it.
    os._exit(status)
