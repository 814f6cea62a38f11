# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import dataclasses
import io
import pathlib
import re
import tempfile
import unittest
from unittest import mock

from tools.testing import __main__ as command
from tools.testing import environment, lengths, report, suites
from tools.testing.outcome import Failure, Outcome
from tools.testing.session import Result

UNIT, NOVA, LXC = (suites.BY_NAME[name] for name in ("unit", "nova", "lxc"))


class LengthsTest(unittest.TestCase):
    def test_what_passed_here_counts(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name, "state", "lengths.json")
        usual = {"unit": UNIT.usual_s, "nova": NOVA.usual_s}
        self.assertEqual(usual, lengths.expected((UNIT, NOVA), path))
        failed = Outcome(1, (Failure("x"),))
        results = (Result(UNIT, Outcome(2), 12.34), Result(NOVA, failed, 1.0))
        lengths.keep(results, path)
        self.assertEqual(usual | {"unit": 12.3}, lengths.expected((UNIT, NOVA), path))
        # What another run measured stays.
        lengths.keep((Result(LXC, Outcome(1), 5.0),), path)
        self.assertEqual(12.3, lengths.expected((UNIT,), path)["unit"])
        for text in ("", "[1]", '{"unit": "long"}', '{"unit": [1]}'):
            path.write_text(text)
            self.assertEqual(usual, lengths.expected((UNIT, NOVA), path), text)


class ReportTest(unittest.TestCase):
    def test_shares(self) -> None:
        results = (Result(UNIT, Outcome(2), 10.0, 15.0), Result(NOVA, Outcome(3), 40.0, 45.0))
        with (
            contextlib.redirect_stdout(io.StringIO()) as printed,
            mock.patch.object(report.os, "cpu_count", lambda: 2),
        ):
            report.summary(1.0, 40.0, results, (), {"moves": "passed here"})
        lines = printed.getvalue().splitlines()
        self.assertEqual(["unit", "2", "0", "0", "10.0", "15.0", "25%"], lines[3].split())
        self.assertEqual(["nova", "3", "0", "0", "40.0", "45.0", "75%"], lines[4].split())
        whole = ["(all)", "5", "0", "0", "40.0", "60.0", "75%", "of", "2", "CPUs"]
        self.assertEqual(whole, lines[5].split())
        self.assertEqual("LEFT OUT moves: passed here", lines[6])
        self.assertEqual("5 passed, 0 failed, 0 skipped", lines[-1])


class SelectedTest(unittest.TestCase):
    def selected(self, *arguments: str) -> list[str]:
        return [suite.name for suite in command._selected(command._parse(arguments))]

    def test_before_a_release_only(self) -> None:
        rare = dataclasses.replace(LXC, release_only=True)
        changed = tuple(rare if suite is LXC else suite for suite in suites.SUITES)
        names = [suite.name for suite in suites.SUITES]
        with mock.patch.object(suites, "SUITES", changed):
            self.assertEqual(names, self.selected("--all"))
            self.assertEqual(
                [n for n in names if n not in ("lxc", "shapes", "bars", "gpu")], self.selected()
            )
            self.assertEqual(["lxc"], self.selected("lxc"))

    def test_quick(self) -> None:
        self.assertEqual([*suites.QUICK], self.selected("quick"))
        for line in (("quick", "unit"), ("quick", "--nova", "33"), ("quick", "--all")):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
                self.selected(*line)

    def test_contributing_has_each_and_when(self) -> None:
        text = (environment.ROOT / "CONTRIBUTING.rst").read_text()
        _, described, _ = re.split(r"^=+ =+$", text, maxsplit=2, flags=re.MULTILINE)
        table = dict(re.findall(r"^``(\w+)`` +(.*)$", described, re.MULTILINE))
        self.assertEqual([suite.name for suite in suites.SUITES], list(table))
        for suite in suites.SUITES:
            rare = table[suite.name].startswith("before a release: ")
            self.assertEqual(suite.release_only, rare, suite.name)
            changed = table[suite.name].startswith("where what it reads is changed: ")
            self.assertEqual(suite.changed_only, changed, suite.name)
