# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from tools.testing import outcome
from tools.testing.outcome import Failure, Outcome, Skip

STESTR = """
{1} tests.unit.core.test_model.TestA.test_parses [0.000512s] ... ok
{0} tests.unit.core.test_model.TestA.test_scenario(five, hex digits) [0.1s] ... ok
{0} setUpClass (tests.unit.host.test_nvml.TestQuery) [0.000000s] ... FAILED
{1} tests.unit.host.test_nodes.TestNodes.test_real [0.000123s] ... SKIPPED: needs a real GPU
{0} tests.unit.host.test_nodes.TestNodes.test_never_begun ... SKIPPED: no promtool
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


STESTR_FAILURES = """
{0} tests.unit.test_a.TestA.test_two [0.424988s] ... FAILED

Captured traceback:
~~~~~~~~~~~~~~~~~~~
    Traceback (most recent call last):

      File "/src/tests/unit/test_a.py", line 8, in test_two
    raise KeyError("x")

    KeyError: 'x'

    
During handling of the above exception, another exception occurred:


    Traceback (most recent call last):

      File "/src/tests/unit/test_a.py", line 11, in test_two
    raise ValueError("first")
    ^^^^^^^^^^^^^^^^^^^^^^^^^

    ValueError: first

Captured pythonlogging:
~~~~~~~~~~~~~~~~~~~~~~~
    2026-11-22 10:32:00,583 ERROR [root] logged
Traceback (most recent call last):
  File "/src/tests/unit/test_a.py", line 8, in test_two
    raise KeyError("x")
KeyError: 'x'

{0} tests.unit.test_a.TestA.test_none [0.1s] ... FAILED
""".splitlines()

STESTR_FORK = """
{1} tests.functional.test_a.TestA.test_two [2.588741s] ... FAILED

Captured traceback:
~~~~~~~~~~~~~~~~~~~
    Traceback (most recent call last):
  File "/src/tests/functional/test_a.py", line 8, in test_two
    (x,) = []
    ^^^^
ValueError: not enough values to unpack (expected 1, got 0)

{0} tests.functional.test_a.TestA.test_one [2.373257s] ... ok
""".splitlines()

UNITTEST_FAILURE = """
FAIL: test_b (tests.lxc.test_a.TestA.test_b)
----------------------------------------------------------------------
testtools.testresult.real._StringException: pythonlogging:'': {{{
Traceback (most recent call last):
  File "/src/tests/lxc/test_a.py", line 8, in test_b
    raise KeyError("x")
KeyError: 'x'
}}}

Traceback (most recent call last):
  File "/src/tests/lxc/test_a.py", line 13, in test_b
    self.assertEqual({1: 2}, {1: 3})
  File "/venv/lib/python3.11/site-packages/nova/tests/case.py", line 704, in assertThat
    raise mismatch_error
MismatchError: !=:
reference = {1: 2}
actual    = {1: 3}


----------------------------------------------------------------------
Ran 1 test in 0.528s
""".splitlines()


class TestStestr(unittest.TestCase):
    def test_counts(self):
        self.assertEqual(
            Outcome(
                2,
                (Failure("setUpClass (tests.unit.host.test_nvml.TestQuery)"),),
                (
                    Skip("tests.unit.host.test_nodes.TestNodes.test_real", "needs a real GPU"),
                    Skip("tests.unit.host.test_nodes.TestNodes.test_never_begun", "no promtool"),
                ),
            ),
            outcome.from_stestr(STESTR, 1),
        )

    def test_exit_status_without_a_failed_test_is_a_failure(self):
        failures = outcome.from_stestr([], 100).failures
        self.assertEqual(["stestr ended with 100"], [str(each) for each in failures])


class TestUnittest(unittest.TestCase):
    def test_counts(self):
        did = outcome.from_unittest(UNITTEST, 1)
        self.assertEqual("1 passed, 1 failed, 2 skipped", str(did))
        self.assertEqual(
            (Failure("test_stops (tests.lxc.test_flavors.TestFlavor.test_stops)"),), did.failures
        )
        self.assertEqual(["needs a real GPU", "it's late"], [skip.reason for skip in did.skips])

    def test_nothing_run_is_a_failure(self):
        self.assertEqual(1, outcome.from_unittest(["Ran 0 tests in 0.000s", "", "OK"], 0).failed)

    def test_a_crash_is_a_failure(self):
        self.assertEqual(1, outcome.from_unittest(["Ran 3 tests in 0.000s", "", "OK"], -11).failed)


class TestReasons(unittest.TestCase):
    def test_of_stestr(self):
        said = [str(each) for each in outcome.from_stestr(STESTR_FAILURES, 1).failures]
        self.assertEqual(
            [
                "tests.unit.test_a.TestA.test_two: tests/unit/test_a.py:11: ValueError: first",
                "tests.unit.test_a.TestA.test_none",
            ],
            said,
        )

    def test_of_a_fork(self):
        (failure,) = outcome.from_stestr(STESTR_FORK, 1).failures
        said = "ValueError: not enough values to unpack (expected 1, got 0)"
        self.assertEqual(f"tests/functional/test_a.py:8: {said}", failure.reason)

    def test_of_unittest(self):
        said = [str(each) for each in outcome.from_unittest(UNITTEST_FAILURE, 1).failures]
        self.assertEqual(
            [
                "test_b (tests.lxc.test_a.TestA.test_b): tests/lxc/test_a.py:13: MismatchError: "
                "!=: reference = {1: 2} actual    = {1: 3}"
            ],
            said,
        )


class TestLines(unittest.TestCase):
    def test_failures_are_told_from_the_rest(self):
        failed = [line for line in STESTR + UNITTEST if outcome.is_failure_line(line)]
        self.assertEqual(["{0}", "test_stops"], [line.split()[0] for line in failed])


class TestSum(unittest.TestCase):
    def test_suites_add_up(self):
        total = sum(
            (Outcome(2), Outcome(1, (Failure("a"),)), Outcome(skips=(Skip("b", "c"),))), Outcome()
        )
        self.assertEqual("3 passed, 1 failed, 1 skipped", str(total))
