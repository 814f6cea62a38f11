# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import io
import unittest
from collections.abc import Sequence

from tools.testing import again, report, suites
from tools.testing.environment import NEWEST, Environment
from tools.testing.outcome import Failure, Outcome, Skip
from tools.testing.session import Result
from tools.testing.suites import Suite

FUNCTIONAL = suites.BY_NAME["functional"]
LXC = suites.BY_NAME["lxc"]
GUIDE = suites.BY_NAME["guide"]
BOOTS = "tests.functional.test_claims.ClaimTest.test_boots"


def result(*failed: str, suite: Suite = FUNCTIONAL, passed: int = 7) -> Result:
    failures = tuple(Failure(name, "said so") for name in failed)
    return Result(suite, Outcome(passed, failures), 10.0, 5.0)


class TestNames(unittest.TestCase):
    def test_of_both_runners(self):
        self.assertEqual((BOOTS,), again.names(result(BOOTS)))
        with_scenario = result(f"{BOOTS}(five, hex digits)")
        self.assertEqual((BOOTS,), again.names(with_scenario))
        flavors = "tests.lxc.test_flavors.FlavorTest"
        failed = result(
            f"test_boots ({flavors}.test_boots) (gpus=2)",
            f"test_boots ({flavors}.test_boots) (gpus=3)",
            f"setUpClass ({flavors})",
            suite=LXC,
        )
        self.assertEqual((f"{flavors}.test_boots", flavors), again.names(failed))

    def test_the_whole_suite_where_a_failure_names_no_test(self):
        self.assertEqual((), again.names(result("guide: pages", suite=GUIDE)))
        left = "unittest ended with 1 after 43 tests"
        self.assertEqual((), again.names(result(left, suite=LXC)))

    def test_nothing_that_would_fail_again(self):
        for each in (
            result(),
            result("style: ruff check", suite=suites.BY_NAME["style"]),
            result("types: mypy", suite=suites.BY_NAME["types"]),
            result("unittest.loader._FailedTest.tests.functional.test_typo"),
            result("stestr ended with 100"),
            result(BOOTS, "functional: functional ran out of time"),
            result(*(f"{BOOTS}_{number}" for number in range(again.MOST + 1))),
        ):
            with self.subTest(each.outcome.failures):
                self.assertIsNone(again.names(each))


class TestTried(unittest.TestCase):
    def tried(self, first: Result, second: Outcome) -> Result:
        def run(suite: Suite, tests: Sequence[str]) -> Result:
            self.ran = (suite.name, tuple(tests))
            self.assertLessEqual(suite.limit_s, again.LIMIT_S)
            return Result(suite, second, 2.0, 1.0)

        return again.tried(first, run)

    def test_passes(self):
        found = self.tried(result(BOOTS), Outcome(passed=1))
        self.assertEqual(("functional", (BOOTS,)), self.ran)
        self.assertEqual(Outcome(8, unsteady=(Failure(BOOTS, "said so"),)), found.outcome)
        self.assertEqual((FUNCTIONAL, 12.0, 6.0), (found.suite, found.seconds, found.cpu_s))

    def test_the_whole_suite_passes(self):
        first = result("unittest ended with 1 after 43 tests", suite=LXC, passed=42)
        found = self.tried(first, Outcome(passed=43))
        self.assertEqual((43, 0), (found.outcome.passed, found.outcome.failed))

    def test_fails_again(self):
        found = self.tried(result(BOOTS), Outcome(failures=(Failure(BOOTS, "once more"),)))
        self.assertEqual(result(BOOTS).outcome, found.outcome)
        self.assertEqual("7 passed, 1 failed, 0 skipped", str(found.outcome))

    def test_is_not_found_or_skipped(self):
        for second in (
            Outcome(),
            Outcome(skips=(Skip(BOOTS, "no root"),)),
            Outcome(failures=(Failure("stestr ended with 1"),)),
        ):
            with self.subTest(second):
                self.assertTrue(self.tried(result(BOOTS), second).outcome.failed)

    def test_one_of_two_fails_again(self):
        other = BOOTS.replace("boots", "ends")
        second = Outcome(passed=1, failures=(Failure(other),))
        self.assertEqual(2, self.tried(result(BOOTS, other), second).outcome.failed)


class TestCommand(unittest.TestCase):
    def argv(self, suite: Suite, *tests: str) -> tuple[str, ...]:
        (check,) = suites.checks(suite, Environment(NEWEST), None, tests=tests)
        return check.argv

    def test_runs_those_tests_alone(self):
        self.assertEqual(
            ("-k", "tests.lxc.a.B.test_c", "-k", "tests.lxc.a.D"),
            self.argv(LXC, "tests.lxc.a.B.test_c", "tests.lxc.a.D")[-4:],
        )
        pattern = self.argv(FUNCTIONAL, BOOTS)[-1]
        self.assertRegex(BOOTS, pattern)
        self.assertRegex(f"{BOOTS}(five, hex digits)", pattern)
        self.assertNotRegex(f"{BOOTS}_too", pattern)
        self.assertNotRegex(BOOTS.replace(".test_claims", "_test_claims"), pattern)


class TestClosingLines(unittest.TestCase):
    def test_name_what_is_unsteady(self):
        outcome = Outcome(8, unsteady=(Failure(BOOTS, "said so"),))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            report.summary(0.0, 10.0, [Result(FUNCTIONAL, outcome, 9.0, 3.0)], ())
        *_, unsteady, closing = printed.getvalue().splitlines()
        self.assertEqual(
            f"UNSTEADY, passed when it was run again alone: {BOOTS}: said so", unsteady
        )
        self.assertEqual("8 passed, 0 failed, 0 skipped", closing)
