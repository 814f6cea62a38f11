# SPDX-License-Identifier: Apache-2.0
"""The MIG instances of NVIDIA cards, as the driver's capability files in /proc list them.

The files exist whatever tool has created the instances. They lack an instance's profile, which only
NVML reports. Source: NVIDIA's MIG user guide, "Device nodes and capabilities".
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterable

from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot, of_slot
from nova_gpu.host.nvidia import proc
from nova_gpu.host.roots import Roots

_ACCESS = re.compile(r"gi([0-9]{1,4})(?:/ci([0-9]{1,4}))?/access")


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Capability:
    """NVIDIA's permission to use one GPU instance or one compute instance.

    A process has it if it can open the device node ``/dev/nvidia-caps/nvidia-cap<minor>``, which
    nvidia-modprobe creates for the file ``access`` in /proc. ``gpu_instance`` and
    ``compute_instance`` are NVIDIA's ids; the latter is ``None`` for the capability of a whole GPU
    instance.
    """

    gpu_instance: int
    compute_instance: int | None
    access: pathlib.Path
    minor: int


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class MIGDevice:
    """A MIG instance: one compute instance of a GPU instance, which CUDA shows as a device.

    ``gpu_instance`` and ``compute_instance`` are NVIDIA's ids, ``minors`` the minor numbers of the
    capability nodes of both.
    """

    gpu_instance: int
    compute_instance: int
    minors: tuple[int, int]

    @property
    def index(self) -> str:
        """The ids of the GPU instance and the compute instance in NVIDIA's notation, ``1/0``."""
        return f"{self.gpu_instance}/{self.compute_instance}"


def gpu_minor(address: PciAddress, roots: Roots) -> int | None:
    """Return N of the card's /dev/nvidiaN, not nvidia-smi's index; ``None`` if it is unknown."""
    return _number(proc.card(address, roots).get("Device Minor"))


def is_divided(card: PciAddress, roots: Roots) -> bool:
    """Return whether the driver lists a GPU instance of the card, even one it cannot describe."""
    minor = gpu_minor(card, roots)
    return minor is not None and any(_folder(minor, roots).glob("gi*"))


def of_card(card: PciAddress, roots: Roots) -> tuple[MIGDevice, ...]:
    """Return the MIG instances that the driver lists for the card, sorted."""
    minor = gpu_minor(card, roots)
    return () if minor is None else instances(capabilities(minor, roots))


def is_slot_there(slot: Slot, roots: Roots) -> bool:
    """Return whether the MIG instance at *slot* exists.

    :raises OSError: if the driver does not report it
    """
    minor = gpu_minor(slot.parent, roots)
    if minor is None:
        return False
    gpu_instance, compute_instance = of_slot(slot.number)
    try:
        (_folder(minor, roots) / f"gi{gpu_instance}/ci{compute_instance}").lstat()
    except FileNotFoundError:
        return False
    return True


def _folder(gpu_minor: int, roots: Roots) -> pathlib.Path:
    return roots.proc / f"driver/nvidia/capabilities/gpu{gpu_minor}/mig"


def capabilities(gpu_minor: int, roots: Roots) -> tuple[Capability, ...]:
    """Return the capabilities of the GPU and compute instances of the card with *gpu_minor*.

    They are in the order of their paths. Files that cannot be read or parsed are left out.
    """
    folder = _folder(gpu_minor, roots)
    paths = []
    for path in sorted((*folder.glob("gi*/access"), *folder.glob("gi*/ci*/access"))):
        match = _ACCESS.fullmatch(str(path.relative_to(folder)))
        minor = _number(proc.fields(path).get("DeviceFileMinor"))
        if match and minor is not None:
            compute_instance = int(match[2]) if match[2] else None
            paths.append(Capability(int(match[1]), compute_instance, path, minor))
    return tuple(paths)


def instances(capabilities: Iterable[Capability]) -> tuple[MIGDevice, ...]:
    """Return the MIG instances of the card with *capabilities*, sorted.

    One whose GPU instance has no capability is left out, as a process needs both to use it.
    """
    listed = tuple(capabilities)
    minors = {cap.gpu_instance: cap.minor for cap in listed if cap.compute_instance is None}
    return tuple(
        sorted(
            MIGDevice(cap.gpu_instance, cap.compute_instance, (minors[cap.gpu_instance], cap.minor))
            for cap in listed
            if cap.compute_instance is not None and cap.gpu_instance in minors
        )
    )


def without_compute(card: PciAddress, roots: Roots) -> frozenset[int]:
    """Return the ids of the card's GPU instances that have no compute instance."""
    minor = gpu_minor(card, roots)
    listed = () if minor is None else capabilities(minor, roots)
    having = {cap.gpu_instance for cap in listed if cap.compute_instance is not None}
    return frozenset(cap.gpu_instance for cap in listed) - having


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch("[0-9]{1,9}", text) else None
