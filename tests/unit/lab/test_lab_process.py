# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import fixtures
import testtools

from lab.cloud import leftovers, process, settings


class PidTest(testtools.TestCase):
    """A pid file is believed only of a process that is the lab's."""

    def setUp(self) -> None:
        super().setUp()
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.lab = settings.Lab(folder, settings.Ports(), "secret")
        process.pid_file(self.lab, "keystone").parent.mkdir()

    def _running(self, tag: str) -> int:
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, leftovers.ENVIRONMENT: tag},
        )
        self.addCleanup(child.communicate)
        assert child.stdout is not None
        child.stdout.readline()
        process.pid_file(self.lab, "keystone").write_text(f"{child.pid}\n")
        return child.pid

    def test_its_own(self) -> None:
        pid = self._running(self.lab.tag)
        self.assertEqual(pid, process.pid(self.lab, "keystone"))

    def test_another_process_has_the_pid_now(self) -> None:
        pid = self._running("")
        self.assertIsNone(process.pid(self.lab, "keystone"))
        process.stop(self.lab, "keystone")
        self.assertTrue(leftovers.is_alive(pid))
        self.assertFalse(process.pid_file(self.lab, "keystone").exists())
