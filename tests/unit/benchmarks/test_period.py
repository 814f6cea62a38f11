# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import subprocess
import sys
import unittest

from benchmarks import period, timing


class PeriodTest(unittest.TestCase):
    def test_in_turns_and_the_first_ones_not_counted(self) -> None:
        called: list[str] = []

        def ours() -> None:
            called.append("ours")
            if len(called) < 6:  # as what is looked at once
                sum(range(3_000_000))

        calls = [ours, lambda: called.append("stock")]
        ours_ms, stock_ms = timing.medians_ms(calls, 3, period._processor_s, uncounted=3)
        self.assertEqual(["ours", "stock"] * 6, called)
        self.assertLess(ours_ms, 10)
        self.assertLess(stock_ms, 10)

    def test_what_a_child_takes_is_counted(self) -> None:
        """By the processor time of those that have ended"""
        before = period._processor_s()
        work = "import time\nwhile time.process_time() < 0.3: pass"
        subprocess.run([sys.executable, "-c", work], check=True)
        self.assertGreaterEqual(period._processor_s() - before, 0.25)
