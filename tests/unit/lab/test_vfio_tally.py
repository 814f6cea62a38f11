# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import testtools

from lab.vm import boot
from tests.vfio import tally


class TallyTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tally = tally.Tally()

    def test_two_boots(self) -> None:
        self.tally.read("{0} tests.a.T.test_x [1.0s] ... ok\n{0} tests.a.T.te")
        panic = boot.Boot(boot.End.PANIC, None, 60.0, "Kernel panic")
        self.assertIn(
            "after 1 tests: the VM's kernel panicked Kernel panic", self.tally.lose(panic)
        )
        self.tally.read("{0} tests.a.T.test_y [1.0s] ... SKIPPED: why\n")
        self.tally.last = boot.Boot(boot.End.EXIT, 0, 30.0)
        self.assertEqual(
            ["VM retried: the VM's kernel panicked Kernel panic", "Ran 2 tests in 90.000s"],
            tally.closing([self.tally], 90.0),
        )
        self.assertTrue(self.tally.passed)

    def test_no_valid_boot_is_an_error(self) -> None:
        self.tally.last = boot.Boot(boot.End.LIMIT, None, 600.0)
        other = tally.Tally()
        other.read("{0} tests.a.T.test_x [1.0s] ... ok\n")
        other.last = boot.Boot(boot.End.EXIT, 0, 30.0)
        self.assertEqual(
            ["{0} the VM ... FAILED", "its time was up", "Ran 2 tests in 600.000s"],
            tally.closing([self.tally, other], 600.0),
        )
        self.assertFalse(self.tally.passed)
