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


class BelongsTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.proc = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def _process(self, pid: int, environ: str = "", mountinfo: str = "", state: str = "S") -> None:
        entry = self.proc / str(pid)
        entry.mkdir()
        (entry / "environ").write_text(environ)
        (entry / "mountinfo").write_text(mountinfo)
        (entry / "cmdline").write_text("nova-compute\0--config-file\0/a")
        (entry / "stat").write_text(f"{pid} (a) b) {state} 1 1 1 0")

    def _belongs(self, pid: int) -> bool:
        return leftovers.belongs(pid, LAB, self.proc)

    def test_by_environment(self) -> None:
        self._process(5, f"HOME=/root\0{leftovers.ENVIRONMENT}={LAB}\0")
        self.assertTrue(self._belongs(5))

    def test_reused_pid(self) -> None:
        self._process(5, "HOME=/root\0", "30 1 0:26 / /dev rw - devtmpfs devtmpfs rw\n")
        self.assertFalse(self._belongs(5))

    def test_another_lab(self) -> None:
        other = leftovers.tag(pathlib.Path("/elsewhere"))
        self._process(
            5, f"{leftovers.ENVIRONMENT}={other}\0", f"30 1 0:26 / /dev rw - tmpfs {other} rw\n"
        )
        self.assertFalse(self._belongs(5))


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
