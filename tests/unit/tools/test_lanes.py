# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import io
import os
import pathlib
import tempfile
import threading
import time
import unittest

from tools.testing import lanes, process, report
from tools.testing.outcome import Outcome
from tools.testing.session import Result
from tools.testing.suites import Suite

UNIT = Suite("unit", "", 1)
FUNCTIONAL = Suite("functional", "", 1)
LXC = Suite("lxc", "", 1, lane="libvirtd")


class TestRun(unittest.TestCase):
    def setUp(self):
        self.stop = threading.Event()

    def test_side_by_side_and_in_order(self):
        begun = {suite.name: threading.Event() for suite in (UNIT, FUNCTIONAL, LXC)}

        def work(suite: Suite) -> Result:
            begun[suite.name].set()
            if suite is LXC:
                self.assertTrue(begun["functional"].wait(10))
            elif suite is UNIT:
                self.assertTrue(begun["lxc"].wait(10))
                self.assertFalse(begun["functional"].is_set())
            report.say("done")
            return Result(suite, Outcome(passed=1), 0.0)

        with contextlib.redirect_stdout(io.StringIO()) as printed:
            results = lanes.run((UNIT, FUNCTIONAL, LXC), work, self.stop, at_once=2)

        self.assertEqual([UNIT, FUNCTIONAL, LXC], [result.suite for result in results])
        self.assertEqual(
            ["functional  done", "lxc         done", "unit        done"],
            sorted(line.strip() for line in printed.getvalue().splitlines()),
        )

    def test_one_lane_has_no_names(self):
        def work(suite: Suite) -> Result:
            report.say("done")
            return Result(suite, Outcome(passed=1), 0.0)

        with contextlib.redirect_stdout(io.StringIO()) as printed:
            lanes.run((UNIT, FUNCTIONAL), work, self.stop, at_once=2)
        self.assertEqual("   done\n   done\n", printed.getvalue())

    def test_no_more_at_once_than_told(self):
        running: list[str] = []

        def work(suite: Suite) -> Result:
            running.append(suite.name)
            self.assertEqual([suite.name], running)
            running.remove(suite.name)
            return Result(suite, Outcome(passed=1), 0.0)

        with contextlib.redirect_stdout(io.StringIO()):
            results = lanes.run((UNIT, LXC), work, self.stop, at_once=1)
        self.assertEqual([UNIT, LXC], [result.suite for result in results])

    def test_one_that_breaks_ends_the_others(self):
        started = time.monotonic()
        ended = threading.Event()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)

        def work(suite: Suite) -> Result:
            if suite is LXC:
                raise ValueError("broken")
            try:
                process.run(
                    ["sleep", "60"],
                    log=pathlib.Path(folder.name, "log"),
                    environ=os.environ,
                    limit_s=60,
                    stop=self.stop,
                )
            except process.Stopped:
                ended.set()
                raise
            raise AssertionError("it slept to its end")

        with self.assertRaisesRegex(ValueError, "broken"):
            lanes.run((UNIT, FUNCTIONAL, LXC), work, self.stop, at_once=2)
        self.assertTrue(ended.is_set())
        self.assertLess(time.monotonic() - started, 20)
