# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pathlib
import stat

import fixtures
from oslotest import base

from nova_gpu.core import exception
from nova_gpu.core.boot_files import File
from nova_gpu.host.state import written_files

ONE = File("/etc/modprobe.d/nova-gpu.conf", "options\n")
HOOK = File("/etc/initramfs-tools/hooks/nova-gpu", "#!/bin/sh\n", 0o755)


class TestWrittenFiles(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (self.root / "etc/modprobe.d").mkdir(parents=True)
        (self.root / "etc/modprobe.d/other.conf").write_text("other\n")

    def tree(self) -> dict[str, tuple[object, ...]]:
        """Every file and folder below the root, with all that --undo has to bring back"""
        found: dict[str, tuple[object, ...]] = {}
        for path in self.root.rglob("*"):
            status = path.lstat()
            content = path.read_bytes() if path.is_file() else None
            mtime = status.st_mtime_ns if path.is_file() else None
            found[str(path)] = (status.st_mode, status.st_uid, status.st_gid, mtime, content)
        return found

    def test_there_and_back(self) -> None:
        before = self.tree()
        changed = written_files.apply([ONE, HOOK], self.root)
        self.assertEqual(sorted([ONE.path, HOOK.path]), changed)
        hook = self.root / HOOK.path[1:]
        self.assertEqual((HOOK.text, 0o755), (hook.read_text(), stat.S_IMODE(hook.stat().st_mode)))
        self.assertEqual(changed, written_files.undo(self.root))
        self.assertEqual(before, self.tree())

    def test_a_file_that_was_there(self) -> None:
        path = self.root / ONE.path[1:]
        path.write_bytes(b"# the operator's\n\xff")
        path.chmod(0o640)
        os.utime(path, ns=(1_600_000_000_123_456_789, 1_600_000_000_123_456_789))
        before = self.tree()
        written_files.apply([ONE], self.root)
        written_files.apply([File(ONE.path, "options two\n")], self.root)
        self.assertEqual("options two\n", path.read_text())
        written_files.undo(self.root)
        self.assertEqual(before, self.tree())

    def test_again_changes_nothing(self) -> None:
        written_files.apply([ONE], self.root)
        before = self.tree()
        self.assertEqual([], written_files.changes([ONE], self.root))
        self.assertEqual([], written_files.apply([ONE], self.root))
        self.assertEqual(before, self.tree())

    def test_what_is_no_longer_wanted(self) -> None:
        before = self.tree()
        written_files.apply([ONE, HOOK], self.root)
        self.assertEqual([HOOK.path], written_files.changes([ONE], self.root))
        self.assertEqual([HOOK.path], written_files.apply([ONE], self.root))
        self.assertFalse((self.root / HOOK.path[1:]).exists())
        written_files.undo(self.root)
        self.assertEqual(before, self.tree())

    def test_a_file_that_was_removed_meanwhile(self) -> None:
        before = self.tree()
        written_files.apply([ONE, HOOK], self.root)
        (self.root / HOOK.path[1:]).unlink()
        self.assertEqual([HOOK.path], written_files.apply([ONE, HOOK], self.root))
        (self.root / HOOK.path[1:]).unlink()
        written_files.undo(self.root)
        self.assertEqual(before, self.tree())

    def test_a_file_that_was_changed_meanwhile(self) -> None:
        written_files.apply([ONE, HOOK], self.root)
        (self.root / ONE.path[1:]).write_text("options, and one of mine\n")
        before = self.tree()
        for act in (
            lambda: written_files.changes([HOOK], self.root),
            lambda: written_files.apply([HOOK], self.root),
            lambda: written_files.undo(self.root),
        ):
            error = self.assertRaises(exception.FileChanged, act)
            self.assertIn(ONE.path, str(error))
        self.assertEqual(before, self.tree())

    def test_cut_off(self) -> None:
        """The second file cannot be written: what was done is taken back, or done again."""
        before = self.tree()
        written_files.apply([ONE], self.root)
        (self.root / "etc/initramfs-tools").touch()
        two = File(ONE.path, "options two\n")
        self.assertRaises(OSError, written_files.apply, [two, HOOK], self.root)
        (self.root / "etc/initramfs-tools").unlink()
        self.assertIn(HOOK.path, written_files.apply([two, HOOK], self.root))
        written_files.undo(self.root)
        self.assertEqual(before, self.tree())

    def test_nothing_to_undo(self) -> None:
        before = self.tree()
        self.assertEqual([], written_files.undo(self.root))
        self.assertEqual(before, self.tree())
