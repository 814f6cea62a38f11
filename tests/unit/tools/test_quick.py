# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib
import re
import unittest

from tools.testing import quick, suites
from tools.testing.environment import NEWEST, Environment

_TESTS = pathlib.Path(__file__).parents[2]


class TestQuick(unittest.TestCase):
    def test_what_it_names_is_there(self):
        for name in quick.SUITES:
            self.assertIn(name, suites.BY_NAME)
        for name in quick.FUNCTIONAL:
            module, _, test_class = name.partition(".")
            source = (_TESTS / "functional" / f"{module}.py").read_text()
            self.assertRegex(source, rf"(?m)^class {test_class}\(", name)
        for name in quick.UNIT_LEFT_OUT:
            self.assertTrue(_TESTS.parent.joinpath(*name.split(".")).is_dir(), name)

    def test_only_those_are_run(self):
        argv = self.argv("functional")
        pattern = argv[-1]
        self.assertTrue(re.search(pattern, "tests.functional.test_claims.ClaimsTest.test_two"))
        self.assertFalse(re.search(pattern, "tests.functional.test_kvm.ClaimsTest.test_two"))
        left_out = self.argv("unit")[-1]
        self.assertTrue(re.search(left_out, "tests.unit.fuzz.test_cdi.CDITest.test_any"))
        self.assertFalse(re.search(left_out, "tests.unit.host.test_cdi.CDITest.test_any"))

    def argv(self, name: str) -> tuple[str, ...]:
        environment = Environment(NEWEST)
        (check,) = suites.checks(suites.BY_NAME[name], environment, None, quickly=True)
        return check.argv
