# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import subprocess
import sys
import unittest


class SchedulingTest(unittest.TestCase):
    def test_filter_is_no_dearer_than_compute_capabilities(self) -> None:
        """The benchmark itself refuses filters that do not pass all hosts."""
        command = [sys.executable, "-m", "benchmarks.scheduling", "--json", "--burst", "0"]
        done = subprocess.run([*command, "--hosts", "1000"], capture_output=True, text=True)
        self.assertEqual(0, done.returncode, done.stderr)
        rows = {each["name"]: each for each in map(json.loads, done.stdout.splitlines())}
        for ours in ("GPUFilter", "GPUFilter and GPUWeigher"):
            stock = rows[f"1,000 hosts: {ours}, ComputeCapabilitiesFilter"]
            self.assertGreater(stock["ratio"], 1, stock)
        kept = rows["1,000 hosts: what is kept"]
        self.assertEqual("KB/host", kept["unit"])
        self.assertLess(kept["ours"], 2)
