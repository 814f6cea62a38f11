# SPDX-License-Identifier: Apache-2.0
"""A cache of files, by name, that a run in a bare root stores and later runs use.

A file's name in the store ends with the digest of its content, so that a truncated or changed file
is recognised, and removed instead of used. Files are added by renaming, so any number of runs can
share a store without a lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

_MARK = "~"
# The list of the file names in a kept folder. It is written last.
_NAMES = ".names"
_BLOCK = 1 << 20
_ZEROS = bytes(_BLOCK)
_DAYS = 30
_DAY_S = 86400.0


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """A store in a folder.

    ``sparse``: the files consist mostly of holes, which copies have too.
    """

    folder: Path
    sparse: bool = False

    def find(self, name: str) -> Path | None:
        """Return the path of the stored file *name*; ``None`` if it is missing or not intact."""
        for path in self._copies(name):
            if self._is_sound(path):
                return path
            path.unlink(missing_ok=True)
        return None

    def put(self, name: str, source: Path) -> Path:
        """Store the file *source* as *name*, and return its path in the store.

        It replaces a stored file of that name. It is a hard link if possible, so *source* must not
        be written to again.
        """
        digest = self._digest(source)
        path = self.folder / f"{name}{_MARK}{digest}"
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{uuid.uuid4().hex}.new")
        self._copy(source, new)
        os.utime(new)  # when it was kept, by which it is dropped in the end
        new.rename(path)
        for other in self._copies(name):
            if other != path:
                other.unlink(missing_ok=True)
        return path

    def take_all(self, into: Path) -> None:
        """Copy all intact stored files into the folder *into*."""
        for path, name, _ in self._files():
            if not self._is_sound(path):
                path.unlink(missing_ok=True)
                continue
            target = into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another run has removed it
                self._copy(path, target)

    def keep(self, files: Iterable[Path]) -> int:
        """Store the *files* by their names; return how many were not yet there."""
        known = {(file.st_dev, file.st_ino) for _, _, file in self._files()}
        count = 0
        for path in files:
            status = path.stat()
            if (status.st_dev, status.st_ino) not in known:
                self.put(path.name, path)
                count += 1
        return count

    def take_folders(self, into: Path) -> None:
        """Copy all stored folders whose files are intact into *into*.

        Remove the other ones from the store.
        """
        for listed in [name for _, name, _ in self._files() if Path(name).name == _NAMES]:
            folder = Path(listed).parent
            names = self.find(listed)
            folders = (
                [self.find(str(folder / name)) for name in names.read_text().split()]
                if names
                else []
            )
            if not folders or not all(folders):
                shutil.rmtree(self.folder / folder, ignore_errors=True)
                continue
            (into / folder).mkdir(parents=True, exist_ok=True)
            for path in folders:
                assert path
                self._copy(path, into / folder / path.name.rpartition(_MARK)[0])

    def keep_folder(self, source: Path) -> bool:
        """Store the folder *source* with its files, and return whether it was not yet there.

        Its name is ``KIND-KEY``. Of one kind, the store has the two newest folders, because two
        checkouts may alternate.
        """
        if any(name == f"{source.name}/{_NAMES}" for _, name, _ in self._files()):
            return False
        files = [path for path in source.iterdir() if path.is_file()]
        for path in files:
            self.put(f"{source.name}/{path.name}", path)
        with tempfile.NamedTemporaryFile("w", dir=self.folder, prefix=".", suffix=".new") as listed:
            listed.write("\n".join(path.name for path in files))
            listed.flush()
            self.put(f"{source.name}/{_NAMES}", Path(listed.name))
        kind = source.name.rpartition("-")[0]
        others = [path for path in self.folder.glob(f"{kind}-*") if path.name != source.name]
        for other in sorted(others, key=lambda path: path.stat().st_mtime)[:-1]:
            shutil.rmtree(other, ignore_errors=True)
        return True

    def prune(self) -> None:
        """Remove files that were stored over a month ago, and unfinished files of killed runs."""
        oldest = time.time() - _DAYS * _DAY_S
        for path, _, file in self._files():
            if file.st_mtime < oldest:
                path.unlink(missing_ok=True)
        for path in self.folder.rglob(".*.new"):  # a killed run's
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < time.time() - _DAY_S:
                    path.unlink()

    def _files(self) -> list[tuple[Path, str, os.stat_result]]:
        """Return the path, the name without the digest, and the status of each stored file.

        Files of other users are left out.
        """
        files = []
        for path in sorted(self.folder.rglob(f"*{_MARK}*")):
            if file := _own(path):
                name = str(path.relative_to(self.folder)).rpartition(_MARK)[0]
                files.append((path, name, file))
        return files

    def _copies(self, name: str) -> list[Path]:
        folder, prefix = (self.folder / name).parent, f"{Path(name).name}{_MARK}"
        names = os.listdir(folder) if folder.is_dir() else []
        paths = [folder / name for name in names if name.startswith(prefix)]
        return [path for path in paths if _own(path)]

    def _is_sound(self, path: Path) -> bool:
        with contextlib.suppress(OSError):
            return path.name.rpartition(_MARK)[2] == self._digest(path)
        return False

    def _digest(self, path: Path) -> str:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            for number, block in enumerate(iter(lambda: file.read(_BLOCK), b"")):
                if not self.sparse:
                    digest.update(block)
                elif block != _ZEROS[: len(block)]:
                    digest.update(b"%d\0" % number + block)
        return digest.hexdigest()

    def _copy(self, source: Path, target: Path) -> None:
        try:
            os.link(source, target)
        except FileNotFoundError:
            raise
        except OSError:  # another filesystem
            self._copy_content(source, target)

    def _copy_content(self, source: Path, target: Path) -> None:
        if not self.sparse:
            shutil.copyfile(source, target)
            return
        with source.open("rb") as read, target.open("wb") as written:
            for block in iter(lambda: read.read(_BLOCK), b""):
                if block == _ZEROS[: len(block)]:
                    written.seek(len(block), os.SEEK_CUR)
                else:
                    written.write(block)
            written.truncate(source.stat().st_size)


def _own(path: Path) -> os.stat_result | None:
    """Return the status of a regular file that this user owns, ``None`` for anything else."""
    with contextlib.suppress(FileNotFoundError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            return status
    return None
