# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import pathlib
import signal
import sys
import tempfile
import unittest

from tests.fixtures import processes
from tools.testing import process


class TestRun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log = pathlib.Path(folder.name, "deep", "run.log")

    def run_shell(self, script: str, limit_s: float = 200.0) -> process.Finished:
        return process.run(
            ["/bin/sh", "-c", script], log=self.log, environ=os.environ, limit_s=limit_s
        )

    def test_lines_and_status(self):
        finished = self.run_shell("echo one; echo two >&2; printf three; exit 3")
        self.assertEqual(process.Finished(3, ("one", "two", "three"), False), finished)
        self.assertEqual("one\ntwo\nthree", self.log.read_text())

    def test_processor_time(self):
        """Of a grandchild, too, for which the child has waited"""
        burn = "import time\nwhile time.process_time() < 0.5: pass"
        finished = self.run_shell(f"{sys.executable} -S -c '{burn}'; sleep 0.1")
        self.assertGreaterEqual(finished.cpu_s, 0.5)
        self.assertLess(self.run_shell("sleep 0.1").cpu_s, 0.4)

    def test_the_deadline_ends_the_whole_group(self):
        """Which would run for longer than this test may."""
        finished = self.run_shell("sleep 1000 & echo $!; wait", limit_s=2)
        self.assertTrue(finished.timed_out)
        self.assertTrue(processes.ends(int(finished.lines[0])))

    def test_a_daemon_left_behind_does_not_hold_it_up(self):
        finished = self.run_shell("sleep 1000 & echo $!", limit_s=1000)
        self.addCleanup(os.kill, int(finished.lines[0]), signal.SIGKILL)
        self.assertEqual((1, False), (len(finished.lines), finished.timed_out))

    def test_who_stands_back(self):
        finished = process.run(["nice"], log=self.log, environ=os.environ, limit_s=60, niceness=5)
        self.assertEqual(5, int(finished.lines[0]) - os.nice(0))
