# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import fixtures
from oslotest import base

from nova_gpu.host.state import files

UID = os.getuid()
# The disk is full for what comes after the first bytes: a write there fails (setrlimit(2)).
_FULL = """
import pathlib, resource, sys
from nova_gpu.host.state import files
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
try:
    files.write(pathlib.Path(sys.argv[1]), b"x" * 100)
except OSError:
    print("refused")
"""


class FilesTestCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "state")
        self.folder.mkdir()
        self.path = self.folder / "one.json"


class FilesTest(FilesTestCase):
    def test_a_write_that_fails_leaves_what_was(self) -> None:
        files.write(self.path, b"{}")
        done = subprocess.run(
            [sys.executable, "-c", _FULL, self.path], capture_output=True, check=True
        )
        self.assertEqual(b"refused", done.stdout.strip())
        self.assertEqual({}, files.read_json(self.path))
        self.assertEqual(["one.json"], files.names(self.folder))
        files.write(self.path, b"[]")
        self.assertEqual(["one.json"], os.listdir(self.folder))

    def test_too_large(self) -> None:
        files.write(self.path, b"[1234]")
        self.assertEqual("[1234]", files.read(self.path, 6))
        self.assertRaises(ValueError, files.read, self.path, 5)

    def test_what_is_no_file(self) -> None:
        self.assertRaises(FileNotFoundError, files.read_json, self.path)
        self.path.mkdir()
        self.assertRaises(ValueError, files.read_json, self.path)
        self.assertRaises(OSError, files.write, self.path, b"")

    def test_no_link_is_followed(self) -> None:
        other = self.folder.with_name("other")
        other.write_text("{}")
        self.path.symlink_to(other)
        self.assertRaises(OSError, files.read_json, self.path)
        files.write_json(self.path, [])
        self.assertEqual([{}, []], [files.read_json(other), files.read_json(self.path)])

    def test_names(self) -> None:
        self.assertEqual([], files.names(self.folder / "none"))
        for name in ("b", "a", ".a.nova-gpu"):
            files.write(self.folder / name, b"")
        self.assertEqual(["a", "b"], files.names(self.folder))
        self.assertRaises(OSError, files.names, self.folder / "a")


class TrustedTest(FilesTestCase):
    """What only this process's user, root on hosts, is to write"""

    def test_no_folder_is_no_file(self) -> None:
        self.folder.rmdir()
        self.assertRaises(FileNotFoundError, files.read_json, self.path, trusted=True)
        self.assertRaises(FileNotFoundError, files.write, self.path, b"", trusted=True)
        files.remove(self.path, trusted=True)

    def test_a_file_that_others_can_write(self) -> None:
        files.write_json(self.path, {}, mode=0o666, trusted=True)
        with self.assertRaisesRegex(files.Untrusted, "one.json is not trusted: all users"):
            files.read_json(self.path, trusted=True)
        self.assertEqual({}, files.read_json(self.path))

    def test_a_folder_that_others_can_write_or_put_in_its_place(self) -> None:
        self.folder.chmod(0o777)
        self.refused("state is not trusted: all users")
        other = self.folder.with_name("other")
        other.mkdir()
        (other / self.path.name).write_text("{}")
        self.folder.rmdir()
        self.folder.symlink_to(other)
        self.refused("state is not a folder")
        self.assertEqual(["one.json"], os.listdir(other))

    def refused(self, reason: str) -> None:
        for done in (files.read_json, files.remove, lambda p, **k: files.write(p, b"", **k)):
            with self.assertRaisesRegex(files.Untrusted, reason):
                done(self.path, trusted=True)


class DistrustTest(FilesTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path.touch(0o644)

    def distrust(self, owner_uid: int = UID) -> str | None:
        return files.distrust(self.path.stat(), owner_uid)

    def test_writable_for_a_group(self) -> None:
        if UID:
            self.skipTest("not root: no file is given to a group")
        self.path.chmod(0o664)
        self.assertIsNone(self.distrust())
        os.chown(self.path, UID, 1000)
        self.assertEqual("the group 1000 can write to it", self.distrust())
        self.path.chmod(0o644)
        self.assertIsNone(self.distrust())
