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

    def kept(self, name: str) -> pathlib.Path:
        path = self.store.find(name)
        assert path
        return path

    def test_what_was_changed_is_not_found(self) -> None:
        for change in (b"", b"conten", b"CONTENT"):
            self.store.put("a", self.file("a"))
            os.unlink(self.root / "a")
            self.kept("a").write_bytes(change)
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


class FoldersTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.store = Store(self.folder / "store", sparse=True)

    def system(self, key: str = "a") -> pathlib.Path:
        folder = self.folder / "root" / f"system-{key}"
        folder.mkdir(parents=True)
        (folder / "vmlinuz").write_bytes(b"kernel")
        with (folder / "disk").open("wb") as disk:
            disk.seek(5 << 20)
            disk.write(key.encode())
            disk.truncate(64 << 20)
        return folder

    def taken(self) -> list[pathlib.Path]:
        into = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.store.take_folders(into)
        return list(into.iterdir())

    def test_not_at_all(self) -> None:
        for name in ("disk", "vmlinuz", ".names"):
            for change in ("gone", "changed"):
                key = f"{name.strip('.')}{change}"
                source = self.system(key)
                self.store.keep_folder(source)
                (path,) = (self.store.folder / source.name).glob(f"{name}~*")
                path.unlink()
                if change == "changed":
                    path.write_bytes(b"x")
                self.assertEqual([], self.taken(), key)
                # And it can be kept again.
                self.assertTrue(self.store.keep_folder(source))
                self.assertEqual(1, len(self.taken()))
                for kept in (self.store.folder / source.name).iterdir():
                    kept.unlink()
