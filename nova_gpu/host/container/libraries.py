# SPDX-License-Identifier: Apache-2.0
"""The files of a vendor's driver that LXC guests need, gathered in folders on the host.

The guest's linker needs SONAME links, which the hooks of CDI would create inside the guest. They
are created on the host instead, next to the libraries in ``<library_root>/<digest>``. The digest
covers the files with their sizes and times, so that guests of one driver version share a folder.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Sequence

from oslo_log import log as logging

from nova_gpu.core import container, exception
from nova_gpu.host import child_process

LOG = logging.getLogger(__name__)

# The folder of the libraries in the guest; LD_LIBRARY_PATH names it.
TARGET = "/usr/lib/nova-gpu"

_LIBRARY = re.compile(r"lib.+\.so(\.[0-9A-Za-z_.+-]+)?")
_UNFINISHED = ".unfinished-"
_LDCONFIG_TIMEOUT_S = 120
# ldconfig is in a folder that an ordinary user's PATH often lacks.
_SBIN = "/usr/sbin:/sbin"


def is_library(mount: container.Mount) -> bool:
    return _library_name(mount) is not None


def gather(
    mounts: Sequence[container.Mount], links: Iterable[tuple[str, str]], library_root: pathlib.Path
) -> container.Mount:
    """Gather the libraries in *mounts* in one folder, and return its mount at ``TARGET``.

    Of two libraries with one name the 64-bit one is taken.

    :param links: pairs of target and path, as in :class:`nova_gpu.host.container.cdi.Edits`; those
        from one library to another are created in the folder, without their own folders
    :raises GuestFilesUnavailable: if the folder cannot be created
    """
    files: dict[str, str] = {}
    for mount in sorted(mounts, key=lambda mount: not _is_64_bit(mount.source)):
        name = _library_name(mount) or os.path.basename(mount.target)
        other = files.setdefault(name, mount.source)
        if other != mount.source:
            LOG.info(
                "Guests get the library %(one)s and not %(other)s, which has the same name",
                {"one": other, "other": mount.source},
            )
    names = (tuple(os.path.basename(path) for path in link) for link in links)
    wanted = sorted(
        (content, link)
        for content, link in names
        if _LIBRARY.fullmatch(content) and _LIBRARY.fullmatch(link) and link != content
    )
    return container.Mount(str(_folder(files, library_root, wanted)), TARGET)


def gather_folder(
    mounts: Sequence[container.Mount], target: str, library_root: pathlib.Path
) -> container.Mount:
    """Gather the files in *mounts* in one folder, and return its mount at the folder *target*.

    A mount for each file would not do: libvirt creates a missing folder to mount a folder, but not
    the missing folder of a file.

    :raises GuestFilesUnavailable: if the folder cannot be created
    """
    files = {os.path.relpath(mount.target, target): mount.source for mount in mounts}
    return container.Mount(str(_folder(files, library_root, None)), target)


def prune(
    library_root: pathlib.Path, in_use: Collection[str], older_than_s: float = 3600
) -> list[str]:
    """Remove the folders below *library_root* that are not in use, and return their paths.

    :param in_use: the sources of the mounts of all guests of this host, running or not
    :param older_than_s: folders that were used more recently stay, because their guest may not be
        defined yet
    :raises OSError: if *library_root* cannot be listed
    """
    limit = time.time() - older_than_s
    used = {os.path.realpath(path) for path in in_use}
    removed = []
    for folder in sorted(library_root.iterdir()) if library_root.is_dir() else ():
        if os.path.realpath(folder) not in used and folder.stat().st_mtime < limit:
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(str(folder))
    return removed


def _folder(
    files: dict[str, str], library_root: pathlib.Path, links: list[tuple[str, str]] | None
) -> pathlib.Path:
    """Return the folder with *files* below *library_root*; create it unless it exists.

    :param files: the source of each file, by its path in the folder
    :param links: the links to create as well as SONAME links; ``None`` for no links at all
    """
    try:
        library_root.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder = library_root / _digest(files, links)
        if not folder.is_dir():
            unfinished = pathlib.Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=library_root))
            try:
                _fill(unfinished, files, links)
                try:
                    unfinished.rename(folder)
                except OSError:
                    if not folder.is_dir():  # else another guest's start has created it
                        raise
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
        os.utime(folder)  # prune() goes by the time of the last use
    except OSError as error:
        raise exception.GuestFilesUnavailable(str(library_root), str(error)) from error
    return folder


def _fill(folder: pathlib.Path, files: dict[str, str], links: list[tuple[str, str]] | None) -> None:
    for name, source in files.items():
        for parent in reversed(pathlib.PurePath(name).parents):
            # Modes are set separately, because the umask must not remove rights of guests.
            (folder / parent).mkdir(exist_ok=True)
            (folder / parent).chmod(0o755)
        _copy(source, folder / name)
    if links is None:
        return
    ldconfig = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:{_SBIN}")
    if ldconfig is None:
        raise FileNotFoundError("ldconfig is not there; install the C library's tools")
    try:
        child_process.run((ldconfig, "-n", str(folder)), _LDCONFIG_TIMEOUT_S)
    except child_process.Failed as error:
        raise OSError(f"{ldconfig} {error}") from error
    for content, link in links:
        # A link may contain the name of another link; one without a target is for a library that is
        # not mounted.
        if not os.path.lexists(folder / link):
            os.symlink(content, folder / link)
    for path in folder.iterdir():
        if path.is_symlink() and not path.exists():
            path.unlink()


def _copy(source: str, path: pathlib.Path) -> None:
    real = os.path.realpath(source)
    try:
        os.link(real, path)
    except OSError:  # the file system or the sysctl fs.protected_hardlinks may forbid links
        shutil.copyfile(real, path)
        path.chmod(0o755 if os.access(real, os.X_OK) else 0o644)


def _digest(files: dict[str, str], links: list[tuple[str, str]] | None) -> str:
    parts: list[object] = [links]
    for name, source in sorted(files.items()):
        status = os.stat(source)
        parts.append((name, os.path.realpath(source), status.st_size, status.st_mtime_ns))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _library_name(mount: container.Mount) -> str | None:
    names = (os.path.basename(path) for path in (mount.target, mount.source))
    return next(filter(_LIBRARY.fullmatch, names), None)


def _is_64_bit(source: str) -> bool:
    """Return whether the file is a 64-bit library, by EI_CLASS of its ELF header (elf(5))."""
    try:
        with open(source, "rb") as file:
            return file.read(5) == b"\x7fELF\x02"
    except OSError:
        return False
