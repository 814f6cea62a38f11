# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pathlib
import tempfile
import threading
import unittest
from collections.abc import Callable

from tools.testing import lanes, process, report
from tools.testing.outcome import Outcome
from tools.testing.session import Result
from tools.testing.suites import Suite

UNIT = Suite("unit", "", 1, 1)
FUNCTIONAL = Suite("functional", "", 1, 1, spread=True)
LXC = Suite("lxc", "", 1, 1, lane="libvirtd")
CRASH = Suite("crash", "", 1, 1, lane="libvirtd")
# All waits of this file: as long as the suite lets a test stand still.
PATIENCE_S = 200


class TestRun(unittest.TestCase):
    def setUp(self):
        self.stop = threading.Event()

    def run_lanes(
        self, selected: tuple[Suite, ...], work: Callable[[Suite], None], at_once: int
    ) -> tuple[str, tuple[Result, ...]]:
        """What was printed, and the results"""

        def whole(suite: Suite) -> Result:
            work(suite)
            report.say("done")
            return Result(suite, Outcome(passed=1), 0.0)

        with contextlib.redirect_stdout(io.StringIO()) as printed:
            results = lanes.run(selected, whole, self.stop, at_once)
        return printed.getvalue(), results

    def test_side_by_side_and_in_order(self):
        begun = {suite.name: threading.Event() for suite in (UNIT, FUNCTIONAL, LXC)}

        def work(suite: Suite) -> None:
            begun[suite.name].set()
            if suite is LXC:
                self.assertTrue(begun["functional"].wait(PATIENCE_S))
            elif suite is UNIT:
                self.assertTrue(begun["lxc"].wait(PATIENCE_S))

        printed, results = self.run_lanes((UNIT, FUNCTIONAL, LXC), work, 2)
        self.assertEqual([UNIT, FUNCTIONAL, LXC], [result.suite for result in results])
        self.assertEqual(
            ["functional  done", "lxc         done", "unit        done"],
            sorted(line.strip() for line in printed.splitlines()),
        )

    def test_the_longest_lane_begins(self):
        """As long as all its suites, which keep their order."""
        begun: list[Suite] = []
        unit, lxc, crash = (
            dataclasses.replace(suite, usual_s=seconds)
            for suite, seconds in ((UNIT, 2), (LXC, 3), (CRASH, 4))
        )
        for seconds, order in ((5, "lxc crash functional unit"), (8, "functional lxc crash unit")):
            begun.clear()
            functional = dataclasses.replace(FUNCTIONAL, usual_s=seconds)
            self.run_lanes((unit, functional, lxc, crash), begun.append, 1)
            self.assertEqual(order.split(), [suite.name for suite in begun])

    def test_one_lane_is_never_in_two_at_once(self):
        lock = threading.Lock()

        def work(suite: Suite) -> None:
            if suite.lane:
                self.assertTrue(lock.acquire(blocking=False))
                begun.wait(0.2)
                lock.release()

        begun = threading.Event()
        self.run_lanes((LXC, CRASH, UNIT), work, 3)

    def test_who_is_spread_stands_back(self):
        self.assertGreater(lanes.niceness(FUNCTIONAL), lanes.niceness(LXC))

    def test_one_lane_has_no_names(self):
        printed, _ = self.run_lanes((LXC, CRASH), lambda suite: None, 2)
        self.assertEqual("   done\n   done\n", printed)

    def test_no_more_at_once_than_told(self):
        running: list[str] = []

        def work(suite: Suite) -> None:
            running.append(suite.name)
            self.assertEqual([suite.name], running)
            running.remove(suite.name)

        _, results = self.run_lanes((UNIT, LXC), work, 1)
        self.assertEqual([UNIT, LXC], [result.suite for result in results])

    def test_one_that_breaks_ends_the_others(self):
        ended = threading.Event()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)

        def work(suite: Suite) -> Result:
            if suite is LXC:
                raise ValueError("broken")
            try:
                process.run(
                    ["sleep", "1000"],
                    log=pathlib.Path(folder.name, "log"),
                    environ=os.environ,
                    limit_s=1000,
                    stop=self.stop,
                )
            except process.Stopped:
                ended.set()
                raise
            raise AssertionError("it slept to its end")

        with self.assertRaisesRegex(ValueError, "broken"):
            lanes.run((UNIT, LXC), work, self.stop, 2)
        self.assertTrue(ended.is_set())
