# SPDX-License-Identifier: Apache-2.0
"""The root folder of a bare Debian: unpacked from an archive, made once a week, and removed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from lab.bare.store import Store
from lab.cloud import cgroups

CODENAMES = {12: "bookworm", 13: "trixie"}
# Certificates are needed because mirrors and indexes are reached by HTTPS.
_INCLUDED = ("ca-certificates", "python3")
_OLD_S = 7 * 86400.0
_PREFIX = "nova-gpu-bare-"
# Prevents that another run takes a new root for an abandoned one before it is locked.
_NEW_S = 60.0


class RootFailed(Exception):
    """The error that a root folder could not be made or removed, and why."""


def archive(store: Store, codename: str, sources: Sequence[Path], acquire: str) -> Path:
    """Return a tar archive of the root folder of a newly installed Debian *codename*.

    It is that in *store*, if that is less than a week old; otherwise mmdebstrap makes it.

    :param sources: the files with apt's sources for it
    :param acquire: apt's configuration for downloads, which the root gets too
    :raises RootFailed: if mmdebstrap fails, with its output
    """
    # With the lists of packages, as after the installer's own update.
    argv = ["mmdebstrap", "--quiet", "--mode=root", "--variant=important", "--format=tar"]
    argv += [f"--include={','.join(_INCLUDED)}", "--skip=cleanup/apt/lists"]
    texts = [path.read_text() for path in sources]
    key = hashlib.sha256(json.dumps([argv, codename, texts, acquire]).encode()).hexdigest()[:16]
    name = f"{codename}-{key}.tar"
    former = store.find(name)
    if former and time.time() - former.stat().st_mtime < _OLD_S:
        return former
    store.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=store.folder, prefix=".") as folder:
        options, made = Path(folder, "acquire.conf"), Path(folder, name)
        options.write_text(acquire)
        # mmdebstrap's own user must be able to reach the folder, and the store may be readable to
        # root only.
        command = [*argv, f"--aptopt={options}", codename, str(made), *map(str, sources)]
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if ran.returncode:
            lines = [line for line in ran.stderr.splitlines() if line.strip()][-5:]
            raise RootFailed(
                f"mmdebstrap ended with status {ran.returncode}: "
                + "\n  ".join(lines or ["it printed no error"])
            )
        return store.put(name, made)


@contextlib.contextmanager
def folder(parent: Path, archived: Path) -> Iterator[Path]:
    """Unpack the archive into a new folder in *parent*, yield the folder, and remove it.

    Loop devices with files in it, and folders that killed runs left, are removed too.

    :raises RootFailed: if the archive cannot be unpacked, or the folder cannot be removed
    """
    for left in parent.glob(f"{_PREFIX}*"):
        _remove_abandoned(left)
    root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    root.chmod(0o755)
    with _lock(root):
        try:
            # Device nodes come from the machine, by a mount.
            argv = ["tar", "-xf", str(archived), "-C", str(root), "--numeric-owner"]
            argv += ["--xattrs", "--exclude=./dev/*"]
            ran = subprocess.run(argv, capture_output=True, text=True)
            if ran.returncode:
                raise RootFailed(
                    f"tar ended with status {ran.returncode}: {ran.stderr.strip()[-500:]}"
                )
            yield root
        finally:
            remove(root)


def remove(root: Path) -> None:
    """Remove the folder *root*.

    :raises RootFailed: if a filesystem is mounted in it, because that one's files would be lost
    """
    for mount in cgroups.mounts(Path("/proc/self/mountinfo").read_text()):
        if mount.target.is_relative_to(root):
            raise RootFailed(
                f"{root} is not removed: {mount.target} is a mount; umount it, then rm -rf {root}"
            )
    _detach_loops(root)
    ran = subprocess.run(
        ["rm", "-rf", "--one-file-system", str(root)], capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise RootFailed(f"{root} is only partly removed: {ran.stderr.strip()[-200:]}")


def _detach_loops(root: Path) -> None:
    """Detach the loop devices whose backing file is in *root*.

    The kernel shows no path of such a file once the mounts of the root are gone, so its inode
    number is compared.
    """
    device = root.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    argv = ["losetup", "--list", "--json", "--output", "NAME,BACK-INO,BACK-MAJ:MIN"]
    output = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    for loop in json.loads(output)["loopdevices"] if output.strip() else ():
        if loop["back-maj:min"].strip() != number:
            continue
        find = ["find", str(root), "-xdev", "-inum", str(loop["back-ino"]), "-print", "-quit"]
        if subprocess.run(find, capture_output=True, check=False).stdout:
            subprocess.run(["losetup", "--detach", loop["name"]], check=False)


@contextlib.contextmanager
def _lock(root: Path) -> Iterator[bool]:
    """Try to lock the folder *root* without waiting, and yield whether that succeeded."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)


def _remove_abandoned(left: Path) -> None:
    with contextlib.suppress(OSError):
        status = left.lstat()
        is_new = time.time() - status.st_ctime < _NEW_S
        if left.is_symlink() or status.st_uid != os.geteuid() or is_new:
            return
        with _lock(left) as is_ours:
            if is_ours:
                remove(left)
