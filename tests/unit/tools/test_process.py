# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import pathlib
import tempfile
import time
import unittest

from tools.testing import process


class TestRun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.log = pathlib.Path(folder.name, "deep", "run.log")

    def run_shell(self, script: str, limit_s: float = 30.0) -> process.Finished:
        return process.run(
            ["/bin/sh", "-c", script], log=self.log, environ=os.environ, limit_s=limit_s
        )

    def ends(self, stat: pathlib.Path) -> bool:
        """Whether a process that was killed is gone, or a zombie where nobody reaps orphans."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            try:
                if stat.read_text().split()[2] == "Z":
                    return True
            except (FileNotFoundError, ProcessLookupError):
                return True
            time.sleep(0.05)
        return False

    def test_lines_and_status(self):
        finished = self.run_shell("echo one; echo two >&2; printf three; exit 3")
        self.assertEqual(process.Finished(3, ("one", "two", "three"), False), finished)
        self.assertEqual("one\ntwo\nthree", self.log.read_text())

    def test_the_deadline_ends_the_whole_group(self):
        started = time.monotonic()
        finished = self.run_shell("sleep 60 & echo $!; wait", limit_s=0.5)
        self.assertTrue(finished.timed_out)
        self.assertLess(time.monotonic() - started, 20)
        self.assertTrue(self.ends(pathlib.Path("/proc", finished.lines[0], "stat")))

    def test_a_daemon_left_behind_does_not_hold_it_up(self):
        started = time.monotonic()
        finished = self.run_shell("(sleep 5 &) ; echo done")
        self.assertEqual(("done",), finished.lines)
        self.assertLess(time.monotonic() - started, 4)
