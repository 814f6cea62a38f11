# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import shlex
import unittest
from collections.abc import Sequence

from tests.cloud import running
from tools import environments, outcomes, suites, tiers
from tools.outcomes import Outcome, Row

# stestr 4.2
LINES = """
{1} tests.unit.core.test_model.TestA.test_parses [0.000512s] ... ok
{0} tests.unit.core.test_model.TestA.test_scenario(five, hex digits) [0.1s] ... ok
{1} tests.unit.host.test_nodes.TestNodes.test_real [0.000123s] ... SKIPPED: needs a real GPU
{0} tests.unit.host.test_nodes.TestNodes.test_never_begun ... SKIPPED: no promtool
{0} tests.unit.test_a.TestA.test_two [0.424988s] ... FAILED

Captured traceback:
~~~~~~~~~~~~~~~~~~~
    ValueError: first

Captured pythonlogging:
~~~~~~~~~~~~~~~~~~~~~~~
    2026-11-22 10:32:00,583 ERROR [root] logged
   | a log line that ends in ... ok
""".splitlines()
BOOTS = "tests.functional.test_claims.ClaimTest.test_boots"


class ReadTest(unittest.TestCase):
    def test_lines_of_stestr(self) -> None:
        done = outcomes.read(LINES, 1, "unit: stestr")
        self.assertEqual("2 passed, 1 failed, 2 skipped", str(done))
        self.assertEqual(["needs a real GPU", "no promtool"], list(done.skipped.values()))
        ((test, text),) = done.failed.items()
        self.assertEqual("tests.unit.test_a.TestA.test_two", test)
        self.assertIn("ValueError: first", text)
        self.assertNotIn("logged", text)

    def test_lines_of_the_suites_that_unittest_runs(self) -> None:
        class Some(unittest.TestCase):
            def test_fails(self) -> None:
                self.fail("with a word")

            def test_part(self) -> None:
                with self.subTest(gpus=2):
                    self.fail("a part of it")

            def test_skipped(self) -> None:
                self.skipTest("it's late")

            def test_well(self) -> None:
                pass

        printed = io.StringIO()
        suite = unittest.TestLoader().loadTestsFromTestCase(Some)
        self.assertFalse(running.run(suite, running.Result(printed)))
        done = outcomes.read(printed.getvalue().splitlines(), 1, "lxc: python")
        self.assertEqual("1 passed, 2 failed, 1 skipped", str(done))
        self.assertEqual(["it's late"], list(done.skipped.values()))
        self.assertIn("AssertionError: with a word", next(iter(done.failed.values())))
        empty = running.Result(io.StringIO())
        self.assertFalse(running.run(unittest.TestSuite(), empty), "nothing was run")


class AgainTest(unittest.TestCase):
    def again(self, suite: str, second: Outcome, *failed: str) -> Outcome:
        self.runs: list[Sequence[str]] = []

        def one(name: str, tests: Sequence[str]) -> Outcome:
            self.runs.append(tests)
            return second

        first = Outcome(suite, 7, dict.fromkeys(failed, "why"), seconds=10.0)
        suites.again(first, one)
        return first

    def test_what_passes_alone_is_unsteady(self) -> None:
        done = self.again("functional", Outcome(passed=1), f"{BOOTS}(five)")
        self.assertEqual([[BOOTS]], self.runs)
        self.assertEqual("8 passed, 0 failed, 0 skipped", str(done))
        self.assertEqual([f"{BOOTS}(five)"], list(done.unsteady))

    def test_what_fails_or_is_skipped_again_has_failed(self) -> None:
        for second in (
            Outcome(passed=1, failed={BOOTS: "again"}),
            Outcome(passed=1, skipped={BOOTS: "no GPU"}),
            Outcome(),
        ):
            self.assertEqual([BOOTS], list(self.again("functional", second, BOOTS).failed))


class TableTest(unittest.TestCase):
    def test_read_back(self) -> None:
        rows = [Row("(install)", 0, 0, 0, 0, 0, 9, 8), Row("unit", 5, 1, 2, 1, 3, 100, 150)]
        total = outcomes.total(rows, 120)
        lines = [outcomes.table([*rows, total]), "FAIL a.test", total.closing()]
        self.assertEqual(
            [*rows, total], outcomes.rows("\n".join(["before", *lines, "tools/bare: x"]))
        )
        self.assertEqual([], outcomes.rows("\n".join(lines[:2])), "no closing line")

    def test_the_end_says_why_a_test_failed(self) -> None:
        output = "\n".join([*map(str, range(20)), "", f"  ValueError: {'x' * 900}", ""])
        first, *lines = outcomes.closing_lines(Outcome(failed={"a.test": output}))
        self.assertEqual(("FAIL a.test", 8), (first, len(lines)))
        self.assertIn("ValueError: x", lines[-1])
        self.assertLess(len("".join(lines)), 300)


class CommandTest(unittest.TestCase):
    def selected(self, *words: str) -> dict[str, str]:
        runs = suites.selected(suites._parser().parse_args(words))
        return {run.suite: shlex.join(run.commands()[-1]) for run in runs}

    def test_tiers(self) -> None:
        short, long, whole = self.selected(), self.selected("--long"), self.selected("functional")
        self.assertIn("--exclude-regex", short["functional"])
        self.assertIn(suites._COSTLY, long["functional"])
        self.assertTrue(whole["functional"].endswith(" run"))
        self.assertNotIn("moves", short)
        self.assertNotIn("unit", long)
        both = self.selected("--short", "functional", "nova")
        self.assertEqual({*short, "nova"}, {*both})
        self.assertEqual(whole["functional"], both["functional"])
        self.assertEqual({"functional", "operations"}, {*self.selected("--nova", "32", "--long")})
        self.assertTrue(self.selected("histories")["histories"].endswith(" what_was_not_cleaned"))
        picked = self.selected("-k", "a", "-k", "b", "functional")
        self.assertTrue(picked["functional"].endswith(" run 'a|b'"))

    def test_skips_that_are_allowed(self) -> None:
        done = Outcome(skipped={"a": "needs a real GPU", "b": "late"})
        suites.refuse_skips(done)
        self.assertEqual((["a"], 1), (list(done.skipped), len(done.failed)))


class TiersTest(unittest.TestCase):
    PARTS = (*tiers.RUN, *tiers.LONG)

    def test_no_suite_is_in_neither(self) -> None:
        named = {word for part in self.PARTS for word in shlex.split(part.command)}
        self.assertIn("--short", shlex.split(tiers.RUN[0].command))
        for name, suite in suites.SUITES.items():
            in_tiers = name in named or (suite.short is not None and suite.long is None)
            self.assertNotEqual(in_tiers, bool(suite.on_request), name)
            self.assertNotEqual(suite.short is suite.long is None, not suite.on_request, name)

    def test_no_script_of_ci_and_no_release_is_in_neither(self) -> None:
        commands = [part.command for part in self.PARTS]
        scripts = {f".ci/{path.name}" for path in (environments.ROOT / ".ci").iterdir()}
        self.assertEqual(set(), scripts - {".ci/run", ".ci/long", *commands})
        for nova in {*environments.RELEASES} - {environments.NEWEST}:
            self.assertIn(f"tools/test --nova {nova} functional", commands)
