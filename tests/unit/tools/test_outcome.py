# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from tools.testing import outcome
from tools.testing.outcome import Outcome, Skip

STESTR = """
{1} tests.unit.core.test_model.TestA.test_parses [0.000512s] ... ok
{0} tests.unit.core.test_model.TestA.test_scenario(five, hex digits) [0.1s] ... ok
{0} setUpClass (tests.unit.host.test_nvml.TestQuery) [0.000000s] ... FAILED
{1} tests.unit.host.test_nodes.TestNodes.test_real [0.000123s] ... SKIPPED: needs a real GPU
   | a log line that ends in ... ok
""".splitlines()

UNITTEST = """
test_boots (tests.lxc.test_flavors.TestFlavor.test_boots)
The blueprint's flavor boots. ... ok
test_real (tests.lxc.test_flavors.TestFlavor.test_real) ... skipped 'needs a real GPU'
test_says (tests.lxc.test_flavors.TestFlavor.test_says)
Said in words. ... skipped "it's late"
test_stops (tests.lxc.test_flavors.TestFlavor.test_stops) ... FAIL
======================================================================
FAIL: test_stops (tests.lxc.test_flavors.TestFlavor.test_stops)
----------------------------------------------------------------------
Ran 4 tests in 61.002s

FAILED (failures=1, skipped=2)
""".splitlines()


class TestStestr(unittest.TestCase):
    def test_counts(self):
        self.assertEqual(
            Outcome(
                2,
                ("setUpClass (tests.unit.host.test_nvml.TestQuery)",),
                (Skip("tests.unit.host.test_nodes.TestNodes.test_real", "needs a real GPU"),),
            ),
            outcome.from_stestr(STESTR, 1),
        )

    def test_exit_status_without_a_failed_test_is_a_failure(self):
        self.assertEqual(("stestr ended with 100",), outcome.from_stestr([], 100).failures)


class TestUnittest(unittest.TestCase):
    def test_counts(self):
        did = outcome.from_unittest(UNITTEST, 1)
        self.assertEqual("1 passed, 1 failed, 2 skipped", str(did))
        self.assertEqual(
            ("test_stops (tests.lxc.test_flavors.TestFlavor.test_stops)",), did.failures
        )
        self.assertEqual(["needs a real GPU", "it's late"], [skip.reason for skip in did.skips])

    def test_nothing_run_is_a_failure(self):
        self.assertEqual(1, outcome.from_unittest(["Ran 0 tests in 0.000s", "", "OK"], 0).failed)

    def test_a_crash_is_a_failure(self):
        self.assertEqual(1, outcome.from_unittest(["Ran 3 tests in 0.000s", "", "OK"], -11).failed)


class TestLines(unittest.TestCase):
    def test_failures_are_told_from_the_rest(self):
        failed = [line for line in STESTR + UNITTEST if outcome.is_failure_line(line)]
        self.assertEqual(["{0}", "test_stops"], [line.split()[0] for line in failed])


class TestSum(unittest.TestCase):
    def test_suites_add_up(self):
        total = sum((Outcome(2), Outcome(1, ("a",)), Outcome(skips=(Skip("b", "c"),))), Outcome())
        self.assertEqual("3 passed, 1 failed, 1 skipped", str(total))
