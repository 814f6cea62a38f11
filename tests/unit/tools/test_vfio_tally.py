# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import testtools

from tests.vfio import tally
from tools.vfiolab import boot


class TallyTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.tally = tally.Tally()

    def test_lines_in_pieces(self) -> None:
        for text in (
            "  1.0 s  test_a.T.test_x ... o",
            "k\n 12.5 s  test_b.T.te",
            "st_y ... FAIL\n",
        ):
            self.tally.read(text)
        self.assertEqual((2, 1), (self.tally.ran, self.tally.failed))

    def test_two_boots(self) -> None:
        self.tally.read("  1.0 s  test_a.T.test_x ... ok\n  1.0 s  test_a.T.te")
        self.tally.lost(boot.Boot(boot.End.PANIC, None, 60.0, "Kernel panic"))
        self.tally.read("  1.0 s  test_a.T.test_y ... skipped 'why'\n")
        closing = self.tally.closing(boot.Boot(boot.End.EXIT, 0, 30.0), 90.0)
        self.assertEqual(
            ["VM retried: the VM's kernel panicked Kernel panic", "Ran 2 tests in 90.000s"],
            closing,
        )

    def test_no_valid_boot_is_an_error(self) -> None:
        closing = self.tally.closing(boot.Boot(boot.End.LIMIT, None, 600.0), 600.0)
        self.assertEqual(["ERROR: the VM: its time was up", "Ran 1 tests in 600.000s"], closing)
