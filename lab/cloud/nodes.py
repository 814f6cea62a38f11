# SPDX-License-Identifier: Apache-2.0
"""Device nodes: those for a private libvirtd's /dev, and those of GPUs on this machine."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import stat
from collections.abc import Iterable, Sequence

# Device numbers of the NVIDIA driver: 195 is registered with the kernel (Documentation/admin-guide/
# devices.txt); the unified memory driver and the capabilities take free majors, 510 and 511 being
# usual ones.
_NVIDIA_MAJOR = 195
_NVIDIA_CONTROL_MINOR = 255
_NVIDIA_UVM_MAJOR = 510
_NVIDIA_CAPS_MAJOR = 511

# The nodes that libvirtd, its LXC controllers, losetup and a login need. Nodes that the machine
# lacks are left out.
_MACHINE = (
    "console",
    "full",
    "fuse",
    "kmsg",
    "kvm",
    "loop-control",
    "net/tun",
    "null",
    "ptmx",
    "random",
    "tty",
    "urandom",
    "zero",
)
_LOOP_MAJOR = 7
_LOOP_DEVICES = 64

# The nodes of GPUs, as shell patterns below /dev.
REAL_GPU_NODES = (
    "nvidia[0-9]*",
    "nvidiactl",
    "nvidia-uvm*",
    "nvidia-modeset",
    "nvidia-caps/*",
    "dri/card*",
    "dri/renderD*",
    "kfd",
)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Node:
    """A device node; ``name`` is its path below /dev, ``kind`` c or b, ``mode`` its rights."""

    name: str
    kind: str
    major: int
    minor: int
    mode: int = 0o600

    @property
    def path(self) -> str:
        return f"/dev/{self.name}"


def copied(names: Iterable[str], dev: pathlib.Path = pathlib.Path("/dev")) -> list[Node]:
    """Return the nodes *names* as they are in the folder *dev*; missing ones are left out."""
    nodes = []
    for name in names:
        try:
            status = (dev / name).stat()
        except OSError:
            continue
        kind = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}.get(stat.S_IFMT(status.st_mode))
        if kind is not None:
            major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
            nodes.append(Node(name, kind, major, minor, stat.S_IMODE(status.st_mode)))
    return nodes


def machine() -> list[Node]:
    """Return the nodes that libvirtd and guests need besides GPUs, and 64 loop devices."""
    loops = [Node(f"loop{n}", "b", _LOOP_MAJOR, n) for n in range(_LOOP_DEVICES)]
    return copied(_MACHINE) + loops


def pretend_nvidia(minors: Sequence[int] = range(8)) -> list[Node]:
    """Return the nodes that NVIDIA's driver would make for cards with these minor numbers.

    Without the driver, opening such a node fails with ENXIO if the process's device cgroup permits
    it, and with EPERM if not.
    """
    return [
        *(Node(f"nvidia{n}", "c", _NVIDIA_MAJOR, n, 0o666) for n in minors),
        Node("nvidiactl", "c", _NVIDIA_MAJOR, _NVIDIA_CONTROL_MINOR, 0o666),
        Node("nvidia-uvm", "c", _NVIDIA_UVM_MAJOR, 0, 0o666),
        Node("nvidia-uvm-tools", "c", _NVIDIA_UVM_MAJOR, 1, 0o666),
    ]


def pretend_nvidia_caps(minors: Iterable[int]) -> list[Node]:
    """Return the nodes that NVIDIA's driver would make for access to MIG instances."""
    return [Node(f"nvidia-caps/nvidia-cap{n}", "c", _NVIDIA_CAPS_MAJOR, n, 0o444) for n in minors]


def pretended_in(dev: pathlib.Path, devices: str) -> list[str]:
    """Return the paths of pretended GPU nodes in *dev*: those whose driver the kernel lacks."""
    if any(line.split()[:1] == [str(_NVIDIA_MAJOR)] for line in devices.splitlines()):
        return []
    nodes = copied(sorted(path.name for path in dev.glob("nvidia*")), dev)
    return [str(dev / node.name) for node in nodes if node.major == _NVIDIA_MAJOR]


def real_gpus() -> list[Node]:
    """Return the machine's GPU nodes, of any vendor."""
    dev = pathlib.Path("/dev")
    names = {str(p.relative_to(dev)) for pattern in REAL_GPU_NODES for p in dev.glob(pattern)}
    return copied(sorted(names), dev)
