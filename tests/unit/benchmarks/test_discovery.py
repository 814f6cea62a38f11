# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import subprocess
import sys

from oslotest import base


class TestDiscovery(base.BaseTestCase):
    def test_both_find_what_is_there(self) -> None:
        """The benchmark itself refuses to compare listings that miss something."""
        # In a process of its own: it decides between threads and eventlet as nova-compute does.
        command = [sys.executable, "-m", "benchmarks.discovery", "--json", "--runs", "1"]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(0, done.returncode, done.stderr)
        listing, *memory = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(("list 16 GPUs and 512 VFs", "ms"), (listing["name"], listing["unit"]))
        self.assertEqual(["MB", "MB"], [row["unit"] for row in memory])
        self.assertLess(memory[1]["ours"], 20)
