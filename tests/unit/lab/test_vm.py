# SPDX-License-Identifier: Apache-2.0
"""The parts of the VM's tools that need no VM."""

from __future__ import annotations

import testtools

from lab.vm import boot

CONSOLE = "[    0.9] some driver said so\r\nlabvm: up 4.95\r\n"
PANIC = "[   71.2] Kernel panic - not syncing: corrupted stack end detected inside scheduler\r\n"


class VerdictTest(testtools.TestCase):
    def test_exit_status(self) -> None:
        for status in (0, 1, 77):
            console = f"{CONSOLE}labvm: EXIT {status}\r\n[ 99.1] reboot: Power down\r\n"
            self.assertEqual((boot.End.EXIT, status, ""), boot.verdict(console))

    def test_panic(self) -> None:
        end, status, reason = boot.verdict(CONSOLE + PANIC)
        self.assertEqual((boot.End.PANIC, None), (end, status))
        self.assertEqual(PANIC.partition("] ")[2].strip(), reason)

    def test_warning_before_the_exit_is_no_panic(self) -> None:
        console = f"{CONSOLE}[ 50.0] BUG: soft lockup\r\nlabvm: EXIT 1\r\n"
        self.assertEqual((boot.End.EXIT, 1, ""), boot.verdict(console))

    def test_without_a_word(self) -> None:
        self.assertEqual((boot.End.LOST, None, ""), boot.verdict(CONSOLE))
