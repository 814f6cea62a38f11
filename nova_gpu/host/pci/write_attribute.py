# SPDX-License-Identifier: Apache-2.0
"""Script that writes one attribute of sysfs, run by :mod:`nova_gpu.host.pci.sysfs`.

It runs as a process of its own because the write returns only when the driver has acted, which may
never happen.
Its arguments are the file and the text to write.
"""

from __future__ import annotations

import os
import sys


def main(path: str, text: str) -> None:
    try:
        # No O_CREAT: an attribute that the kernel does not show must not be created as a file.
        fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(fd, text.encode("ascii"))
        finally:
            os.close(fd)
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}")


if __name__ == "__main__":
    main(*sys.argv[1:])
