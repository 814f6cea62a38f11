# SPDX-License-Identifier: Apache-2.0
"""``prepare.py MODULE CARD[,CARD]``, in a VM that is to be saved: imports MODULE, and waits.

That takes an emulated processor half a minute. When the VM goes on it runs the module that
/out/module.json says, with the cards on the bus again.
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
    """Remove what QEMU does not save: the folders, and the cards it has no state of."""
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
    """Give the VM entropy of its own: copies would draw the same numbers and uuids."""
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
