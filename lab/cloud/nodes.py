# SPDX-License-Identifier: Apache-2.0
"""The device nodes in libvirtd's private /dev."""

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
    """A device node, by its path below /dev: ``Node("nvidia0", "c", 195, 0, 0o666)``."""

    name: str
    kind: str
    major: int
    minor: int
    mode: int = 0o600

    @property
    def path(self) -> str:
        return f"/dev/{self.name}"


def copied(names: Iterable[str], dev: pathlib.Path = pathlib.Path("/dev")) -> list[Node]:
    """Return the machine's nodes *names*; those that do not exist are left out."""
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
    """Return the nodes that guests and libvirtd need, with loop devices that do not exist yet."""
    loops = [Node(f"loop{n}", "b", _LOOP_MAJOR, n) for n in range(_LOOP_DEVICES)]
    return copied(_MACHINE) + loops


def pretend_nvidia(minors: Sequence[int] = range(8)) -> list[Node]:
    """Return nodes with the NVIDIA driver's numbers.

    Without the driver such a node returns ENXIO to processes that the device cgroup permits and
    EPERM to all others, which is enough to tell them apart.
    """
    return [
        *(Node(f"nvidia{n}", "c", _NVIDIA_MAJOR, n, 0o666) for n in minors),
        Node("nvidiactl", "c", _NVIDIA_MAJOR, _NVIDIA_CONTROL_MINOR, 0o666),
        Node("nvidia-uvm", "c", _NVIDIA_UVM_MAJOR, 0, 0o666),
        Node("nvidia-uvm-tools", "c", _NVIDIA_UVM_MAJOR, 1, 0o666),
    ]


def pretend_nvidia_caps(minors: Iterable[int]) -> list[Node]:
    """Return nodes for MIG instances, and for configuring and monitoring them.

    Their answers are those of :func:`pretend_nvidia`.
    """
    return [Node(f"nvidia-caps/nvidia-cap{n}", "c", _NVIDIA_CAPS_MAJOR, n, 0o444) for n in minors]


def pretended_in(dev: pathlib.Path, devices: str) -> list[str]:
    """Return the nodes in *dev* with the NVIDIA driver's number if the kernel has no such driver.

    :param devices: the text of /proc/devices
    """
    if any(line.split()[:1] == [str(_NVIDIA_MAJOR)] for line in devices.splitlines()):
        return []
    nodes = copied(sorted(path.name for path in dev.glob("nvidia*")), dev)
    return [str(dev / node.name) for node in nodes if node.major == _NVIDIA_MAJOR]


def real_gpus(dev: pathlib.Path = pathlib.Path("/dev")) -> list[Node]:
    """Return the machine's own GPU nodes."""
    names = {str(p.relative_to(dev)) for pattern in REAL_GPU_NODES for p in dev.glob(pattern)}
    return copied(sorted(names), dev)
