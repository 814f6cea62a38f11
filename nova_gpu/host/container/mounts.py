# SPDX-License-Identifier: Apache-2.0
"""The places in a guest where the driver's files may be, and where they must not.

That they are mounted read-only prevents accidents. Root in a guest can mount them anew, as tried
with libvirt 9.0; what it cannot is write to files of a user that it has no id for, which is why
:mod:`nova_gpu.host.state.files` looks at their owner and mode.
"""

from __future__ import annotations

import os
import pathlib
import re
import stat
from collections.abc import Iterable

from oslo_log import log as logging

from nova_gpu.core import contents as values
from nova_gpu.host.container import libraries

LOG = logging.getLogger(__name__)

_KERNEL = re.compile(r"/(dev|proc|sys)(/.*)?")
# Folders every image has. libvirt makes a folder that is missing, but none for a file to be in.
_SYSTEM_FOLDERS = frozenset(
    {"/", "/bin", "/etc", "/home", "/lib", "/lib32", "/lib64", "/root", "/run", "/sbin", "/tmp"}
    | {"/usr", "/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/sbin", "/usr/share"}
    | {"/var", "/var/lib", "/var/run"}
)
_SYSTEM_FILES = frozenset(
    {"/etc/passwd", "/etc/shadow", "/etc/group", "/etc/gshadow", "/etc/sudoers"}
    | {"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.preload"}
)
# A folder of such a name is the driver's own: what is bound over the first one hides nothing else.
_VENDORS_FOLDER = re.compile(
    r"((?:/[^/]+)*?/[^/]*(?:nvidia|amdgpu|rocm|radeon|intel)[^/]*)(?:/.*)?"
)


def refusal(mount: values.Mount, status: os.stat_result) -> str | None:
    """Why no guest may have *mount*, whose source has *status*, or ``None``"""
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return "a socket or device is a way to the host, not a file of the driver"
    if _KERNEL.fullmatch(mount.target):
        return "that path is the kernel's"
    if mount.target in _SYSTEM_FOLDERS or mount.target in _SYSTEM_FILES:
        return "it would hide what the guest's own system has there"
    if f"{mount.target}/".startswith(f"{libraries.TARGET}/"):
        return f"{libraries.TARGET} is where guests have the libraries"
    return None


def place(
    mounts: Iterable[values.Mount],
    links: Iterable[tuple[str, str]],
    library_root: pathlib.Path,
) -> list[values.Mount]:
    """Mounts for *mounts* that a guest of any image can start with.

    Libraries are in one folder, with *links* (:func:`nova_gpu.host.container.libraries.gather`).
    Another file is mounted by itself where every image has the folder it is in, else with that
    folder where it is the driver's own, else not at all.

    :raises GuestFilesUnavailable: where a folder cannot be made below *library_root*
    """
    of_libraries: list[values.Mount] = []
    of_folders: dict[str, list[values.Mount]] = {}
    placed: list[values.Mount] = []
    for mount in mounts:
        folder = os.path.dirname(mount.target)
        if os.path.isdir(mount.source):
            placed.append(mount)
        elif libraries.is_library(mount):
            of_libraries.append(mount)
        elif folder in _SYSTEM_FOLDERS:
            placed.append(mount)
        elif vendors := _VENDORS_FOLDER.fullmatch(folder):
            of_folders.setdefault(vendors[1], []).append(mount)
        else:
            LOG.info(
                "Guests do not get %(target)s: an image without %(folder)s would not start, and "
                "%(folder)s is not the GPU driver's to replace",
                {"target": mount.target, "folder": folder},
            )
    if of_libraries:
        placed.append(libraries.gather(of_libraries, links, library_root))
    for folder, files in of_folders.items():
        placed.append(libraries.gather_folder(files, folder, library_root))
    return placed
