# SPDX-License-Identifier: Apache-2.0
"""Builds the disk of LXC guests: an ext4 filesystem with busybox, made without a mount."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import tempfile

USER, USER_ID = "user", 1000
SIZE_MIB = 32
_BUSYBOX = pathlib.Path("/bin/busybox")
_INIT = pathlib.Path(__file__).with_name("init.sh")
# They include empty folders that nova-gpu expects in any image: a vendor's CDI file has files
# mounted there, and libvirt does not create the folder of a file.
FOLDERS = (
    *("bin", "dev", "etc", "home/user", "lib", "lib32", "lib64", "mnt", "proc", "root", "run"),
    *("sbin", "sys", "tmp", "usr/bin", "usr/lib", "usr/lib32", "usr/lib64", "usr/sbin"),
    *("usr/share", "var/lib", "var/run"),
)


def tree(root: pathlib.Path) -> None:
    """Write the guest's files into the folder *root*, creating it if necessary."""
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    shutil.copy2(_BUSYBOX, root / "bin/busybox")
    names = subprocess.run([_BUSYBOX, "--list"], check=True, capture_output=True, text=True)
    for name in names.stdout.split():
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
    shutil.copyfile(_INIT, root / "sbin/init")
    (root / "sbin/init").chmod(0o755)
    (root / "etc/passwd").write_text(
        f"root::0:0:root:/root:/bin/sh\n{USER}::{USER_ID}:{USER_ID}:{USER}:/home/{USER}:/bin/sh\n"
    )
    (root / "etc/group").write_text(f"root::0:\n{USER}::{USER_ID}:\n")
    os.chown(root / "home/user", USER_ID, USER_ID)
    (root / "tmp").chmod(0o1777)


def build(path: pathlib.Path) -> None:
    """Write the disk, an image of 32 MiB, to the file *path*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".new")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        root = pathlib.Path(folder)
        root.chmod(0o755)
        tree(root)
        with unfinished.open("wb") as file:
            file.truncate(SIZE_MIB << 20)
        subprocess.run(
            ["mke2fs", "-q", "-F", "-t", "ext4", "-d", str(root), str(unfinished)],
            check=True,
            capture_output=True,
            text=True,
        )
    unfinished.rename(path)
