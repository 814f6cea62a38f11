# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pathlib

import fixtures
import testtools

from lab.bare.store import Store


class StoreTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.root = self.folder / "root"
        self.root.mkdir()
        self.store = Store(self.folder / "store")

    def file(self, name: str, content: bytes = b"content") -> pathlib.Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def test_what_was_changed_is_not_found(self) -> None:
        for change in (b"", b"conten", b"CONTENT"):
            self.store.put("a", self.file("a"))
            os.unlink(self.root / "a")
            path = self.store.find("a")
            assert path
            path.write_bytes(change)
            self.assertIsNone(self.store.find("a"))
            self.assertEqual([], list(self.store.folder.iterdir()))

    def test_another_users_is_not_found(self) -> None:
        kept = self.store.put("a", self.file("a"))
        target = self.file("elsewhere")
        kept.unlink()
        kept.symlink_to(target)
        self.assertIsNone(self.store.find("a"))
        if os.geteuid() == 0:
            kept.unlink()
            kept.write_bytes(b"content")
            os.chown(kept, 65534, 65534)
            self.assertIsNone(self.store.find("a"))
