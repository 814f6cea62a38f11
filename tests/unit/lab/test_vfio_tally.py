# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import testtools

from lab.vm import boot
from tests.vfio import tally


class TallyTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tally = tally.Tally()

    def test_lines_in_pieces(self) -> None:
        pieces = ("  1.0 s  test_a.T.test_x ... o", "k\n 12.5 s  test_b.T.te", "st_y ... FAIL\n")
        shown = [self.tally.read(piece) for piece in pieces]
        self.assertEqual((2, 1), (self.tally.ran, self.tally.failed))
        self.assertEqual("".join(pieces), "".join(shown))
        self.assertEqual("", shown[0])

    def test_two_boots(self) -> None:
        self.tally.read("  1.0 s  test_a.T.test_x ... ok\n  1.0 s  test_a.T.te")
        panic = boot.Boot(boot.End.PANIC, None, 60.0, "Kernel panic")
        self.assertIn(
            "after 1 tests: the VM's kernel panicked Kernel panic", self.tally.lose(panic)
        )
        self.tally.read("  1.0 s  test_a.T.test_y ... skipped 'why'\n")
        self.tally.last = boot.Boot(boot.End.EXIT, 0, 30.0)
        self.assertEqual(
            ["VM retried: the VM's kernel panicked Kernel panic", "Ran 2 tests in 90.000s"],
            tally.closing([self.tally], 90.0),
        )
        self.assertTrue(self.tally.passed)

    def test_no_valid_boot_is_an_error(self) -> None:
        self.tally.last = boot.Boot(boot.End.LIMIT, None, 600.0)
        other = tally.Tally()
        other.read("  1.0 s  test_a.T.test_x ... ok\n")
        other.last = boot.Boot(boot.End.EXIT, 0, 30.0)
        self.assertEqual(
            ["ERROR: the VM: its time was up", "Ran 2 tests in 600.000s"],
            tally.closing([self.tally, other], 600.0),
        )
        self.assertFalse(self.tally.passed)

    def test_a_failure_before_a_panic_stays_one(self) -> None:
        self.tally.read("  1.0 s  test_a.T.test_x ... FAIL\n")
        self.tally.lose(boot.Boot(boot.End.PANIC, None, 60.0, "Kernel panic"))
        self.tally.last = boot.Boot(boot.End.EXIT, 0, 30.0)
        self.assertFalse(self.tally.passed)
