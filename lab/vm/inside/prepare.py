# SPDX-License-Identifier: Apache-2.0
"""``prepare.py MODULE CARD[,CARD]``: imports MODULE in a VM that will be saved, and waits.

The import takes an emulated processor half a minute. When the VM is resumed, this process runs the
module named in /out/module.json, with the cards on the bus again.
"""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import pathlib
import random
import runpy
import struct
import subprocess
import sys
from typing import Any

_OUT = pathlib.Path("/out")
_PCI = pathlib.Path("/sys/bus/pci/devices")
# include/uapi/linux/random.h
_RNDADDENTROPY, _RNDRESEEDCRNG = 0x40085203, 0x5207


def _take_away() -> None:
    """Remove the shared folders, and the cards whose state QEMU cannot save."""
    os.chdir("/")
    for folder in ("/project", "/out"):
        subprocess.run(["umount", folder], check=True)
    for address in sys.argv[2].split(","):
        (_PCI / address / "remove").write_text("1")


def _wait() -> Any:
    with open("/dev/ttyS1") as line:
        pathlib.Path("/dev/console").write_text("labvm: prepared\n")
        return json.loads(line.readline())


def _be_another(seed: bytes) -> None:
    """Add *seed* to the VM's entropy; otherwise resumed copies draw equal numbers and uuids."""
    with open("/dev/urandom", "wb") as file:
        fcntl.ioctl(file, _RNDADDENTROPY, struct.pack("ii", 8 * len(seed), len(seed)) + seed)
        fcntl.ioctl(file, _RNDRESEEDCRNG)
    random.seed()


def main() -> None:
    importlib.import_module(sys.argv[1])
    _take_away()
    answer = _wait()
    _be_another(bytes.fromhex(answer["seed"]))
    subprocess.run(["sh", "/run/lab/resume.sh", *answer["words"]], check=True)
    os.chdir("/project")
    importlib.invalidate_caches()
    for number, name in ((1, "output"), (2, "stderr")):
        os.dup2(os.open(_OUT / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), number)
    job = json.loads((_OUT / "module.json").read_text())
    os.environ.update(job["environment"])
    sys.argv = job["words"]
    runpy.run_module(job["words"][0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
