# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pathlib
import time

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

    def test_found_as_it_was_put(self) -> None:
        self.assertIsNone(self.store.find("a_1%3a2_all.deb"))
        self.store.put("a_1%3a2_all.deb", self.file("a"))
        self.assertEqual(b"content", self.kept("a_1%3a2_all.deb").read_bytes())
        self.assertIsNone(self.store.find("a_1"))

    def test_another_content_takes_its_place(self) -> None:
        self.store.put("a", self.file("one", b"1"))
        self.store.put("a", self.file("two", b"2"))
        self.assertEqual(b"2", self.kept("a").read_bytes())
        self.assertEqual(1, len(list(self.store.folder.iterdir())))

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

    def test_take_and_keep(self) -> None:
        self.store.put("a.deb", self.file("a.deb", b"a"))
        self.store.put("b.deb", self.file("b.deb", b"b"))
        os.unlink(self.root / "b.deb")
        self.kept("b.deb").write_bytes(b"B")
        next_root = self.folder / "next"
        self.store.take_all(next_root)
        self.assertEqual(["a.deb"], os.listdir(next_root))
        self.assertEqual(b"a", (next_root / "a.deb").read_bytes())

        (next_root / "c.deb").write_bytes(b"c")
        self.assertEqual(1, self.store.keep(next_root.iterdir()))
        self.assertEqual(b"c", self.kept("c.deb").read_bytes())

    def test_what_a_root_removes_stays(self) -> None:
        self.store.put("a.deb", self.file("a.deb"))
        self.store.take_all(self.folder / "next")
        (self.folder / "next/a.deb").unlink()
        self.assertEqual(b"content", self.kept("a.deb").read_bytes())

    def test_prune(self) -> None:
        # apt gives a file the time that the mirror has for it.
        os.utime(self.file("new"), (0, 0))
        self.store.put("new", self.root / "new")
        old = self.store.put("old", self.file("old", b"old"))
        os.utime(old, (0, time.time() - 31 * 86400))
        unfinished = self.store.folder / ".123.new"
        unfinished.touch()
        os.utime(unfinished, (0, 0))
        self.store.prune()
        self.assertIsNotNone(self.store.find("new"))
        self.assertIsNone(self.store.find("old"))
        self.assertFalse(unfinished.exists())


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

    def test_whole(self) -> None:
        source = self.system()
        self.assertTrue(self.store.keep_folder(source))
        self.assertFalse(self.store.keep_folder(source))
        (folder,) = self.taken()
        self.assertEqual("system-a", folder.name)
        self.assertEqual(["disk", "vmlinuz"], sorted(path.name for path in folder.iterdir()))
        self.assertEqual((source / "disk").read_bytes(), (folder / "disk").read_bytes())

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

    def test_sparse_copy(self) -> None:
        """As where a link cannot be."""
        source = self.system() / "disk"
        copied = self.folder / "copied"
        self.store._copy_content(source, copied)
        self.assertEqual(source.read_bytes(), copied.read_bytes())
        self.assertLess(copied.stat().st_blocks * 512, 4 << 20)

    def test_digest_tells_where_a_block_is(self) -> None:
        one, two = self.folder / "one", self.folder / "two"
        for path, offset in ((one, 1 << 20), (two, 2 << 20)):
            with path.open("wb") as file:
                file.seek(offset)
                file.write(b"x" * (1 << 20))
                file.truncate(4 << 20)
        self.assertNotEqual(self.store._digest(one), self.store._digest(two))

    def test_two_of_a_kind(self) -> None:
        for number, key in enumerate(("a", "b", "c")):
            self.store.keep_folder(self.system(key))
            os.utime(self.store.folder / f"system-{key}", (number, number))
        names = sorted(path.name for path in self.store.folder.iterdir())
        self.assertEqual(["system-b", "system-c"], names)
