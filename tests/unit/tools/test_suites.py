# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import io
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from collections.abc import Sequence
from unittest import mock

from tests.cloud import running
from tests.fixtures import processes
from tools import environments, suites

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
        done = suites.read(LINES, 1, "unit: stestr")
        self.assertEqual("2 passed, 1 failed, 2 skipped", str(done))
        self.assertEqual(["needs a real GPU", "no promtool"], list(done.skipped.values()))
        ((test, text),) = done.failed.items()
        self.assertEqual("tests.unit.test_a.TestA.test_two", test)
        self.assertIn("ValueError: first", text)
        self.assertNotIn("logged", text)

    def test_a_command_is_one_test(self) -> None:
        self.assertEqual("1 passed, 0 failed, 0 skipped", str(suites.read(["fine"], 0, "mypy")))
        self.assertEqual({"mypy ended with 1": "a line"}, suites.read(["a line"], 1, "mypy").failed)

    def test_what_no_test_accounts_for_fails(self) -> None:
        done = suites.read(LINES[:3], 124, "unit: stestr")
        self.assertEqual("2 passed, 1 failed, 0 skipped", str(done))

    def test_this_machine_cannot_run_it(self) -> None:
        done = suites.read(["SKIP: needs root"], suites.SKIPPED, "lxc: python")
        self.assertEqual({"lxc: python": "needs root"}, done.skipped)
        self.assertEqual("0 passed, 0 failed, 1 skipped", str(done))

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
        done = suites.read(printed.getvalue().splitlines(), 1, "lxc: python")
        self.assertEqual("1 passed, 2 failed, 1 skipped", str(done))
        self.assertEqual(["it's late"], list(done.skipped.values()))
        self.assertIn("AssertionError: with a word", next(iter(done.failed.values())))
        empty = running.Result(io.StringIO())
        self.assertFalse(running.run(unittest.TestSuite(), empty), "nothing was run")


class AgainTest(unittest.TestCase):
    def again(self, suite: str, second: suites.Outcome, *failed: str) -> suites.Outcome:
        self.asked: list[Sequence[str]] = []

        def one(name: str, tests: Sequence[str]) -> suites.Outcome:
            self.asked.append(tests)
            return second

        first = suites.Outcome(suite, 7, dict.fromkeys(failed, "why"), seconds=10.0)
        suites.again(first, one)
        return first

    def test_what_passes_alone_is_unsteady(self) -> None:
        done = self.again("functional", suites.Outcome(passed=1), f"{BOOTS}(five)")
        self.assertEqual([[BOOTS]], self.asked)
        self.assertEqual("8 passed, 0 failed, 0 skipped", str(done))
        self.assertEqual([f"{BOOTS}(five)"], list(done.unsteady))

    def test_what_fails_or_is_skipped_again_has_failed(self) -> None:
        for second in (
            suites.Outcome(passed=1, failed={BOOTS: "again"}),
            suites.Outcome(passed=1, skipped={BOOTS: "no GPU"}),
            suites.Outcome(),
        ):
            self.assertEqual([BOOTS], list(self.again("functional", second, BOOTS).failed))

    def test_the_whole_suite_where_no_test_can_be_picked(self) -> None:
        done = self.again("guide", suites.Outcome(passed=1), "guide ended with 1")
        self.assertEqual([()], self.asked)
        self.assertEqual("1 passed, 0 failed, 0 skipped", str(done))

    def test_nothing_that_would_fail_again(self) -> None:
        for suite, failed in (
            ("style", ["style: ruff check . ended with 1"]),
            ("unit", []),
            ("functional", [BOOTS, "functional ended at its time limit; ..."]),
            ("unit", [f"{BOOTS}_{number}" for number in range(6)]),
        ):
            self.again(suite, suites.Outcome(passed=1), *failed)
            self.assertEqual([], self.asked)


class RunTest(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.enterContext(mock.patch.multiple(suites, LOG=self.folder, STATE=self.folder))

    def run_shell(self, script: str, limit_s: int = 200) -> tuple[suites.Outcome, str]:
        suite = suites.Suite((f"sh -c '{script}'",))
        with (
            mock.patch.dict(suites.SUITES, {"shell": suite}),
            contextlib.redirect_stdout(io.StringIO()) as printed,
        ):
            return suites.run("shell", environments.NEWEST, limit_s=limit_s), printed.getvalue()

    def test_output(self) -> None:
        done, printed = self.run_shell("echo a word >&2; exit 3")
        self.assertEqual(["a word"], list(done.failed.values()))
        self.assertIn("a word", printed)

    def test_the_limit_ends_the_whole_group(self) -> None:
        done, _ = self.run_shell(f"sleep 1000 & echo $! > {self.folder}/pid; wait", limit_s=2)
        self.assertEqual(["shell ended at its time limit; tests may not have run"], [*done.failed])
        self.assertTrue(processes.ends(int((self.folder / "pid").read_text())))

    def test_the_limit_is_named_beside_what_failed(self) -> None:
        line = "{0} tests.a.A.test_b [0.1s] ... FAILED"
        (self.folder / "lines").write_text(f"{line}\n")
        done, printed = self.run_shell(f"cat {self.folder}/lines; sleep 1000", limit_s=1)
        ended = "shell ended at its time limit; tests may not have run"
        self.assertEqual(["tests.a.A.test_b", ended], list(done.failed))
        self.assertIn(f"FAILED {ended}", printed)

    def test_a_daemon_left_behind_does_not_hold_it_up(self) -> None:
        done, _ = self.run_shell(f"sleep 1000 & echo $! > {self.folder}/pid")
        self.addCleanup(os.kill, int((self.folder / "pid").read_text()), signal.SIGKILL)
        self.assertEqual(1, done.passed)

    def test_lanes_side_by_side_and_in_order(self) -> None:
        began = {name: threading.Event() for name in ("unit", "lxc", "crash")}
        busy = threading.Lock()

        def one(name: str) -> suites.Outcome:
            began[name].set()
            if name == "unit":
                self.assertTrue(began["lxc"].wait(200))
            else:
                self.assertTrue(busy.acquire(blocking=False), "two of a lane at once")
                self.assertTrue(began["unit"].wait(200))
                threading.Event().wait(0.5)  # for the other, which would come meanwhile
                busy.release()
            return suites.Outcome(name)

        done = suites.together(("unit", "lxc", "crash"), one)
        self.assertEqual(["unit", "lxc", "crash"], [each.suite for each in done])

    def test_a_command_ends_with_its_runner(self) -> None:
        script = f"sleep 1000 & echo $! > {self.folder}/pid; wait"
        runner = (
            "import pathlib, sys; from tools import suites\n"
            f"suites._execute(['sh', '-c', {script!r}], pathlib.Path('/dev/null'), "
            f"{environments.NEWEST}, 1000)"
        )
        argv = [sys.executable, "-c", runner]
        with subprocess.Popen(argv, cwd=environments.ROOT) as process:
            file = self.folder / "pid"
            while not (file.exists() and file.read_text().endswith("\n")):
                self.assertIsNone(process.poll())
                threading.Event().wait(0.05)
            process.kill()
        self.assertTrue(processes.ends(int(file.read_text())))


class CommandTest(unittest.TestCase):
    def test_ways_to_ask_for_what_is_not_there(self) -> None:
        for words, reason in ((["nothing"], "no suite"), (["--nova", "32", "unit"], "Nova 32")):
            done = subprocess.run(
                ["tools/test", *words], cwd=environments.ROOT, capture_output=True, text=True
            )
            self.assertEqual(2, done.returncode)
            self.assertIn(reason, done.stderr)

    def test_every_suite_is_described(self) -> None:
        page = (environments.ROOT / "CONTRIBUTING.rst").read_text()
        self.assertEqual([], [name for name in suites.SUITES if f"``{name}``" not in page])

    def test_skips_that_are_allowed(self) -> None:
        done = suites.Outcome(skipped={"a": "needs a real GPU", "b": "late"})
        suites.refuse_skips(done)
        self.assertEqual((["a"], 1), (list(done.skipped), len(done.failed)))
        lines = (environments.ROOT / "tests/allowed-skips.txt").read_text().splitlines()
        without = [each for each in lines if each[:1] not in ("", "#") and " -- " not in each]
        self.assertEqual([], without, "each says why")
