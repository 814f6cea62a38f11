# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import itertools
import os
import pathlib
import shutil
import stat
from collections.abc import Sequence

import fixtures
from oslotest import base

from nova_gpu.core import container, exception
from nova_gpu.host.container import libraries
from tests.fixtures import elf, failing_calls

LIBDIR = "/usr/lib/x86_64-linux-gnu"


class LibrariesTestCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu"))
        self.library_root = self.root / "state/libraries"
        self.cuda = self.library("libcuda.so.570", "libcuda.so.1")

    def library(self, name: str, soname: str) -> container.Mount:
        path = self.root / "host" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(elf.shared_object(soname))
        return container.Mount(str(path), f"{LIBDIR}/{name}")

    def gather(
        self, *mounts: container.Mount, links: Sequence[tuple[str, str]] = ()
    ) -> pathlib.Path:
        mount = libraries.gather(mounts, links, self.library_root)
        self.assertEqual("/usr/lib/nova-gpu", mount.target)
        return pathlib.Path(mount.source)

    def tree(self, folder: pathlib.Path) -> dict[str, str | None]:
        """What each link holds by name, None for what is no link"""
        return {
            path.name: os.readlink(path) if path.is_symlink() else None for path in folder.iterdir()
        }


class TestGather(LibrariesTestCase):
    def test_everybody_can_read_it(self) -> None:
        self.addCleanup(os.umask, os.umask(0o077))
        mount = container.Mount("/proc/version", "/usr/share/nvidia/a/b/version")
        for gathered in (
            libraries.gather([self.cuda], (), self.library_root),
            libraries.gather_folder([mount], "/usr/share/nvidia", self.library_root),
        ):
            folder = pathlib.Path(gathered.source)
            for path in (folder, *folder.rglob("*")):
                others = 0o005 if path.is_dir() else 0o004
                self.assertEqual(others, path.stat().st_mode & others, str(path))

    def test_links_that_are_asked_for(self) -> None:
        links = [
            ("libcuda.so.1", f"{LIBDIR}/libcuda.so"),
            ("/usr/lib/libcuda.so.570", f"{LIBDIR}/libcuda_indirect.so.0"),
            # ldconfig makes this one as well.
            ("libcuda.so.570", f"{LIBDIR}/libcuda.so.1"),
            # None of these leads from one library in the folder to another.
            ("libabsent.so.1", f"{LIBDIR}/libabsent.so"),
            ("libabsent.so", f"{LIBDIR}/libabsent_indirect.so"),
            ("libcuda.so.570", f"{LIBDIR}/libcuda.so.570"),
            ("/etc/passwd", f"{LIBDIR}/libpasswd.so"),
            ("libcuda.so.1", f"{LIBDIR}/gbm/nvidia-drm_gbm.so"),
            ("../..", f"{LIBDIR}/libparent.so"),
            ("", f"{LIBDIR}/"),
        ]
        self.assertEqual(
            {
                "libcuda.so.570": None,
                "libcuda.so.1": "libcuda.so.570",
                "libcuda.so": "libcuda.so.1",
                "libcuda_indirect.so.0": "libcuda.so.570",
            },
            self.tree(self.gather(self.cuda, links=links)),
        )

    def test_64_bit_before_32_bit(self) -> None:
        small = self.root / "host32/libcuda.so.570"
        small.parent.mkdir()
        small.write_bytes(elf.LIBRARY_32)
        mount = container.Mount(str(small), "/usr/lib/i386-linux-gnu/libcuda.so.570")
        folder = self.gather(mount, self.cuda)
        self.assertEqual(
            pathlib.Path(self.cuda.source).read_bytes(), (folder / "libcuda.so.570").read_bytes()
        )
        self.assertIn(str(small), self.log.output)


class TestFolder(LibrariesTestCase):
    def test_made_once_for_each_version(self) -> None:
        folder = self.gather(self.cuda)
        inode = (folder / "libcuda.so.1").lstat().st_ino
        os.utime(folder, (0, 0))
        self.assertEqual(folder, self.gather(self.cuda))
        self.assertEqual(inode, (folder / "libcuda.so.1").lstat().st_ino)
        self.assertGreater(folder.stat().st_mtime, 0)
        os.utime(self.cuda.source, (1, 1))
        after = self.gather(self.cuda)
        with_link = self.gather(self.cuda, links=[("libcuda.so.1", "/libcuda.so")])
        self.assertEqual(3, len({folder, after, with_link}))
        self.assertTrue(folder.is_dir())

    def test_many_at_once(self) -> None:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            folders = list(pool.map(lambda _: self.gather(self.cuda), range(16)))
        self.assertEqual(1, len(set(folders)))
        self.assertEqual(folders[:1], list(self.library_root.iterdir()))
        self.assertEqual(2, len(list(folders[0].iterdir())))

    def test_a_source_that_is_gone(self) -> None:
        os.unlink(self.cuda.source)
        error = self.assertRaises(exception.GuestFilesUnavailable, self.gather, self.cuda)
        self.assertIn(self.cuda.source, str(error))

    def test_ldconfig_fails(self) -> None:
        tool = self.root / "bin/ldconfig"
        tool.parent.mkdir()
        tool.write_text("#!/bin/sh\nexit 3\n")
        tool.chmod(0o755)
        self.useFixture(fixtures.EnvironmentVariable("PATH", str(tool.parent)))
        error = self.assertRaises(exception.GuestFilesUnavailable, self.gather, self.cuda)
        self.assertIn(f"{tool} ended with 3", str(error))
        self.assertEqual([], list(self.library_root.iterdir()))

    def test_a_copy_where_no_hard_link_can_be(self) -> None:
        mount = container.Mount("/proc/version", "/usr/share/nvidia/version")
        gathered = libraries.gather_folder([mount], "/usr/share/nvidia", self.library_root)
        copy = pathlib.Path(gathered.source, "version")
        self.assertFalse(copy.is_symlink())
        self.assertEqual(pathlib.Path("/proc/version").read_bytes(), copy.read_bytes())
        self.assertEqual(0o644, stat.S_IMODE(copy.stat().st_mode))


class TestPrune(LibrariesTestCase):
    def prune(self, *in_use: str) -> list[str]:
        return libraries.prune(self.library_root, in_use)

    def old(self, path: pathlib.Path) -> pathlib.Path:
        os.utime(path, (1, 1))
        return path

    def test_a_guest_may_be_about_to_be_defined(self) -> None:
        folder = self.gather(self.cuda)
        self.assertEqual([], self.prune())
        self.assertEqual([str(self.old(folder))], self.prune())


class FailingCallsTest(LibrariesTestCase):
    """Each system call below the folder of libraries fails once, wherever it is made."""

    CODES = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EROFS, errno.ESTALE)

    def setUp(self) -> None:
        super().setUp()
        self.library_root.parent.mkdir()
        self.config = container.Mount(self.library("10_vendor.json", "").source, "/etc/a/b/10.json")

    def make(self) -> tuple[pathlib.Path, ...]:
        """What a start has made: libraries with their links, and other files"""
        links = [("libcuda.so.1", "libcuda.so")]
        other = libraries.gather_folder([self.config], "/etc/a", self.library_root)
        return self.gather(self.cuda, links=links), pathlib.Path(other.source)

    def whole(self, folders: Sequence[pathlib.Path]) -> list[list[str]]:
        return [sorted(str(path.relative_to(one)) for path in one.rglob("*")) for one in folders]

    def test_a_start(self) -> None:
        """It is refused with the reason, or has all that it needs; so has the next."""
        with failing_calls.noted(self.library_root) as calls:
            right = self.whole(self.make())
        self.assertEqual(["b", "b/10.json"], right[1])
        self.assertGreater(len(calls), 10)
        for number, code in itertools.product(range(1, len(calls) + 1), self.CODES):
            where = f"{calls[number - 1]}, {errno.errorcode[code]}"
            shutil.rmtree(self.library_root, ignore_errors=True)
            made: tuple[pathlib.Path, ...] | None = None
            with failing_calls.one(self.library_root, number, code):
                try:
                    made = self.make()
                except exception.GuestFilesUnavailable as error:
                    self.assertIn(os.strerror(code), str(error), where)
            self.assertIn(self.whole(made) if made else None, (None, right), where)
            made = self.make()
            self.assertEqual(right, self.whole(made), where)
            libraries.prune(self.library_root, list(map(str, made)), -1)
            self.assertEqual(set(made), set(self.library_root.iterdir()), where)

    def test_a_prune(self) -> None:
        """What guests have stays whole, and the next one removes the rest."""
        used, unused = self.make()
        right = self.whole([used])
        with failing_calls.noted(self.library_root) as calls:
            libraries.prune(self.library_root, [str(used)], -1)
        self.assertTrue(calls)
        for number, code in itertools.product(range(1, len(calls) + 1), self.CODES):
            self.make()
            with failing_calls.one(self.library_root, number, code), contextlib.suppress(OSError):
                libraries.prune(self.library_root, [str(used)], -1)
            self.assertEqual(right, self.whole([used]), calls[number - 1])
            libraries.prune(self.library_root, [str(used)], -1)
            self.assertFalse(unused.exists())
