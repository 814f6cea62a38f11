# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

import fixtures
import testtools

from tests.cloud import forks


class Inner:
    """What the tests here run, where no loader finds them"""

    class WarmUp(testtools.TestCase):
        run_tests_with = testtools.RunTest

        def test(self) -> None:
            pass

    class Prepared(testtools.TestCase):
        run_tests_with = forks.RunTest

        def test_passes(self) -> None:
            pass

        def test_fails(self) -> None:
            self.fail("as it must")

        def test_skips(self) -> None:
            self.skipTest("nothing to do")

        def test_fails_at_its_end(self) -> None:
            self.addCleanup(self.fail, "at its end")


Inner.Prepared.WARM_UP = Inner.WarmUp


class ForksTest(unittest.TestCase):
    def setUp(self) -> None:
        self.enterContext(fixtures.EnvironmentVariable("OS_NOVA_DISABLE_EVENTLET_PATCHING", "1"))
        self.addCleanup(forks.end)

    def run_tests(self, *names: str, of: type = Inner.Prepared) -> unittest.TestResult:
        result = unittest.TestResult()
        for name in names:
            of(name).run(result)
        self.assertEqual(len(names), result.testsRun)
        return result

    def test_what_a_test_says(self) -> None:
        result = self.run_tests("test_fails", "test_skips", "test_fails_at_its_end", "test_passes")
        failed = [text for _, text in result.failures]
        self.assertEqual([], result.errors)
        self.assertEqual(2, len(failed), failed)
        self.assertIn("AssertionError: as it must", failed[0])
        self.assertIn("AssertionError: at its end", failed[1])
        self.assertEqual(["nothing to do"], [reason for _, reason in result.skipped])
