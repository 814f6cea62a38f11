# SPDX-License-Identifier: Apache-2.0
"""Writes one attribute of sysfs: a script, run by :mod:`nova_gpu.host.pci.sysfs`.

It is a process of its own because a driver may take its time over such a write, or for ever. Its
arguments are the file and what is written there.
"""

from __future__ import annotations

import os
import sys


def main(path: str, text: str) -> None:
    try:
        # No O_CREAT: what the kernel does not show is not there to be written.
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode("ascii"))
        finally:
            os.close(fd)
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
