# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.lxc.inside [PATTERN ...]``: the tests, in libvirtd's mount namespace."""

from __future__ import annotations

import os
import sys
import time
import unittest
from typing import TextIO


class _Result(unittest.TextTestResult):
    """One line for each test, its seconds first."""

    def startTest(self, test: unittest.TestCase) -> None:
        unittest.TestResult.startTest(self, test)
        self._started = time.monotonic()

    def _write_status(self, test: unittest.TestCase, status: str) -> None:
        name = test.id().removeprefix("tests.lxc.")
        self.stream.write(f"{time.monotonic() - self._started:6.1f} s  {name} ... {status}\n")
        self.stream.flush()


def begin() -> TextIO:
    """To be called before Nova is imported: standard output, which Nova's log no longer goes to."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Nova 2026.2 decides between threads and eventlet on the first import of its tests.
    os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "1")
    import nova.tests.functional  # noqa: F401

    return stream


def main() -> int:
    stream = begin()
    loader = unittest.TestLoader()
    loader.testNamePatterns = [_pattern(each) for each in sys.argv[1:]] or None
    suite = loader.discover("tests/lxc", top_level_dir=".")
    runner = unittest.TextTestRunner(stream=stream, verbosity=2, warnings="ignore")
    runner.resultclass = _Result  # type: ignore[assignment]
    passed = runner.run(suite).wasSuccessful()
    stream.flush()
    return 0 if passed else 1


def _pattern(text: str) -> str:
    """As unittest reads its ``-k``."""
    return text if "*" in text else f"*{text}*"


if __name__ == "__main__":
    status = main()
    # libvirt's event thread never ends, and Python would wait for it.
    os._exit(status)
