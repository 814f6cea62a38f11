# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib
import re
import tempfile
import unittest

from tools.testing import quick, suites
from tools.testing.environment import NEWEST, ROOT, Environment

UNIT, FUNCTIONAL = suites.BY_NAME["unit"], suites.BY_NAME["functional"]


class NamesTest(unittest.TestCase):
    def test_each_is_there(self) -> None:
        """stestr runs those that it finds, and says nothing of the others."""
        names = quick.names()
        self.assertEqual(len(names), len(set(names)))
        self.assertGreater(len(names), 5)
        for name in names:
            with self.subTest(name=name):
                *module, test_class, method = name.split(".")
                source = ROOT.joinpath(*module).with_suffix(".py").read_text()
                self.assertRegex(source, rf"(?m)^class {test_class}\(")
                self.assertRegex(source, rf"(?m)^    def {method}\(")

    def test_left_out_are_modules_that_try_all_cases(self) -> None:
        paths = [each.relative_to(ROOT) for each in (ROOT / "tests/unit").glob("*/**/test_*.py")]
        modules = [".".join(each.with_suffix("").parts) for each in paths]
        left_out = {each for each in modules if re.match(quick.WITHOUT, f"{each}.")}
        others = {each for each in left_out if not re.search(r"unit\.(benchmarks|fuzz)\.", each)}
        self.assertEqual(
            {
                "tests.unit.core.planning.test_plan",
                "tests.unit.virt.fabric.test_fabric_crashes",
                "tests.unit.virt.usage.test_ledger_transitions",
            },
            others,
        )

    def test_left_out_are_folders_of_unit(self) -> None:
        found = [each.name for each in (ROOT / "tests/unit").iterdir() if each.is_dir()]
        left_out = [name for name in found if re.match(quick.WITHOUT, f"tests.unit.{name}.test_x")]
        self.assertEqual(["benchmarks", "fuzz"], sorted(left_out))

    def test_comments(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name, "quick.txt")
        path.write_text("# why\n\na.b  # 3 s\nc\n")
        self.assertEqual(("a.b", "c"), quick.names(path))

    def test_only_these(self) -> None:
        (check,) = suites.checks(FUNCTIONAL, Environment(NEWEST), None, brief=True)
        listed = check.argv[check.argv.index("--load-list") + 1]
        self.assertEqual(quick.names(), tuple(pathlib.Path(listed).read_text().splitlines()))
        (check,) = suites.checks(FUNCTIONAL, Environment(NEWEST), None)
        self.assertNotIn("--load-list", check.argv)
        (check,) = suites.checks(UNIT, Environment(NEWEST), None, brief=True)
        self.assertIn(quick.WITHOUT, check.argv)
        (check,) = suites.checks(UNIT, Environment(NEWEST), None)
        self.assertNotIn(quick.WITHOUT, check.argv)
        self.assertEqual(set(), set(suites.QUICK) - set(suites.BY_NAME))
