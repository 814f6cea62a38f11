# SPDX-License-Identifier: Apache-2.0
"""The values everything else speaks of: a PCI address, a GPU, its links, a group of GPUs."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import NamedTuple

from nova_gpu.core import exception
from nova_gpu.core.availability import Reasons

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class PciAddress:
    """The address of a PCI function: ``0000:88:00.0``.

    The domain has four hex digits as a rule and five or more behind Intel VMD and on Hyper-V; the
    kernel prints it with ``%04x``, and so do we.
    """

    domain: int
    bus: int
    slot: int
    function: int

    @classmethod
    def parse(cls, text: str) -> PciAddress:
        """Parse ``domain:bus:slot.function``.

        :raises InvalidPciAddress: where *text* is not of that form
        """
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match[3], 16) > 0x1F:
            raise exception.InvalidPciAddress(text)
        domain, bus, slot, function = (int(part, 16) for part in match.groups())
        return cls(domain, bus, slot, function)

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.slot:02x}.{self.function:x}"


class LinkType(enum.StrEnum):
    """A direct connection of two GPUs, without the host bridge."""

    NVLINK = "nvlink"
    XGMI = "xgmi"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Link:
    """A direct connection to the GPU at ``peer``, of ``width`` lanes or bricks."""

    peer: PciAddress
    type: LinkType
    width: int = 1


class DeliveryMode(enum.StrEnum):
    """A way to give GPUs to guests: PCI devices, the host's device nodes, or parts of cards."""

    PCI = "pci"
    LXC = "lxc"
    VGPU = "vgpu"

    @classmethod
    def of_whole_cards(cls, virt_type: str) -> DeliveryMode:
        """Return how a host with this ``[libvirt]virt_type`` gives whole cards."""
        return cls.LXC if virt_type == "lxc" else cls.PCI


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Product:
    """A product, with ids of four lower-case hex digits, as in sysfs without ``0x``.

    ``None`` is "not known", which satisfies no condition of a flavor.
    """

    vendor_id: str
    product_id: str
    name: str | None = None
    architecture: str | None = None
    memory_mib: int | None = None
    compute_capability: tuple[int, int] | None = None

    @property
    def key(self) -> str:
        """``10de:2335``, as operators and lspci write it."""
        return f"{self.vendor_id}:{self.product_id}"

    def completed_by(self, other: Product) -> Product:
        """Return this product with *other*'s facts where its own are not known."""
        return Product(
            self.vendor_id,
            self.product_id,
            name=self.name or other.name,
            architecture=self.architecture or other.architecture,
            memory_mib=self.memory_mib or other.memory_mib,
            compute_capability=self.compute_capability or other.compute_capability,
        )


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class MIGInstance:
    """A compute instance of a GPU instance; ``None`` is what the library would not tell.

    ``profile`` is its size as NVIDIA's tools call it (``1g.18gb``), ``slices`` how many of those of
    its card's compute it has.
    """

    gpu_instance: int
    compute_instance: int
    profile: str | None = None
    memory_mib: int | None = None
    slices: int | None = None
    uuid: str | None = None

    @property
    def index(self) -> str:
        """``9/0``, the GPU instance and the compute instance as NVIDIA's tools write them."""
        return f"{self.gpu_instance}/{self.compute_instance}"


@dataclasses.dataclass(frozen=True, slots=True)
class GPU:
    """One whole card, as the host sees it at the last look.

    ``pci_root`` is the root bus it hangs on (``pci0000:80``), ``pcie_switch`` the upstream port of
    the switch it is behind, ``None`` of one that has a root port of its own. ``mig`` are the MIG
    instances that NVML tells of, ``None`` where it does not say that the card is in MIG mode.
    """

    address: PciAddress
    product: Product
    class_code: int
    numa_node: int | None = None
    iommu_group: int | None = None
    pci_root: str | None = None
    pcie_switch: PciAddress | None = None
    driver: str | None = None
    companions: tuple[PciAddress, ...] = ()
    links: tuple[Link, ...] = ()
    uuid: str | None = None
    mig: tuple[MIGInstance, ...] | None = None

    @property
    def functions(self) -> tuple[PciAddress, ...]:
        """All functions of the card's slot, in their order: what a KVM guest gets."""
        return tuple(sorted((self.address, *self.companions)))


class GroupKey(NamedTuple):
    """The key of a group of cards on a host, which is one resource provider.

    ``vgpu_type`` is the type's id where the mode is ``VGPU``, and only there.
    """

    vendor_id: str
    product_id: str
    mode: DeliveryMode
    vgpu_type: str | None = None

    @classmethod
    def of_parts(cls, vendor_id: str, product_id: str, vgpu_type: str) -> GroupKey:
        """Return the key of a group of vGPUs."""
        return cls(vendor_id, product_id, DeliveryMode.VGPU, vgpu_type)

    @property
    def is_in_parts(self) -> bool:
        """Whether it is a group of vGPUs."""
        return self.mode is DeliveryMode.VGPU


@dataclasses.dataclass(frozen=True, slots=True)
class GPUGroup:
    """All cards of one product in one delivery mode on one host: one resource provider.

    ``unavailable`` are those of ``gpus`` that cannot be given now. They stay in the group because
    they may be assigned to an instance.
    """

    key: GroupKey
    product: Product
    gpus: Mapping[PciAddress, GPU]
    unavailable: Mapping[PciAddress, Reasons] = dataclasses.field(default_factory=dict)
