# SPDX-License-Identifier: Apache-2.0
"""The parts of the VM's tools that need no VM."""

from __future__ import annotations

import pathlib

import fixtures
import testtools

from lab.vm import boot, build_cache

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


class MadeTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.state = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.made: list[pathlib.Path] = []

    def make(self, folder: pathlib.Path) -> None:
        self.made.append(folder)
        (folder / "file").write_text("content")

    def test_what_failed_is_made_again(self) -> None:
        def fail(folder: pathlib.Path) -> None:
            (folder / "half").write_text("")
            raise OSError("disk full")

        self.assertRaises(OSError, build_cache.made, self.state, "disk", "a", fail)
        folder = build_cache.made(self.state, "disk", "a", self.make)
        self.assertEqual(["file"], [path.name for path in folder.iterdir()])
