# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import fixtures
import testtools

from lab.cloud import leftovers

LAB = leftovers.tag(pathlib.Path("/var/lib/a lab"))


class EndTest(testtools.TestCase):
    """Real processes: found by their environment, ended, and only those.

    The /proc they are looked for in has these alone, so that no mistake in what is tested can reach
    any other process of the machine.
    """

    def setUp(self) -> None:
        super().setUp()
        self.proc = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def _start(self, lab: str, code: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(
            [sys.executable, "-c", f"{code}; print(flush=True); import time; time.sleep(1000)"],
            env={**os.environ, leftovers.ENVIRONMENT: lab},
            stdout=subprocess.PIPE,
        )
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        assert child.stdout is not None
        child.stdout.readline()
        (self.proc / str(child.pid)).symlink_to(f"/proc/{child.pid}")
        return child

    def test_ends_its_own_also_those_that_ignore_sigterm(self) -> None:
        other = leftovers.tag(pathlib.Path("/elsewhere"))
        stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
        mine = [self._start(LAB, "pass"), self._start(LAB, stubborn)]
        stranger = self._start(other, "pass")

        ended = leftovers.end(LAB, patience_s=0.5, proc=self.proc)

        self.assertEqual(sorted(child.pid for child in mine), [process.pid for process in ended])
        self.assertEqual([], leftovers.processes(LAB, self.proc))
        self.assertIsNone(stranger.poll())
