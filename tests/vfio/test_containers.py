# SPDX-License-Identifier: Apache-2.0
"""The isolation of containers, on a host with cgroup v2: the suite of containers itself, here."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import unittest

_TEST = "test_root_in_the_guest_gets_no_other_card"


class ContainersTest(unittest.TestCase):
    def test_isolation(self) -> None:
        self.assertTrue(pathlib.Path("/sys/fs/cgroup/cgroup.controllers").exists(), "no cgroup v2")

        ran = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "tests.lxc", "-k", _TEST],
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

        said = f"{ran.stdout}\n{ran.stderr}"
        self.assertEqual(0, ran.returncode, said)
        self.assertIn(f"{_TEST} ... ok", ran.stdout, said)
        self.assertIn("Ran 1 test ", ran.stdout, said)
