# SPDX-License-Identifier: Apache-2.0
"""The basic values: a PCI address, a GPU, its links, a group of GPUs."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import NamedTuple

from nova_gpu.core import exception
from nova_gpu.core.unavailability import Reasons

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class PciAddress:
    """The address of a PCI function: ``0000:88:00.0``.

    The domain usually has four hex digits, and five or more behind Intel VMD and on Hyper-V; it is
    printed with ``%04x``, as in the kernel.
    """

    domain: int
    bus: int
    slot: int
    function: int

    @classmethod
    def parse(cls, text: str) -> PciAddress:
        """Parse ``domain:bus:slot.function``.

        :raises InvalidPciAddress: if *text* does not have that form
        """
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match[3], 16) > 0x1F:
            raise exception.InvalidPciAddress(text)
        domain, bus, slot, function = (int(part, 16) for part in match.groups())
        return cls(domain, bus, slot, function)

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.slot:02x}.{self.function:x}"


class LinkType(enum.StrEnum):
    """The type of a direct link between two GPUs, which does not use PCI Express."""

    NVLINK = "nvlink"
    XGMI = "xgmi"


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Link:
    """A direct link to the GPU at ``peer``, of ``width`` XGMI lanes or NVLink bricks."""

    peer: PciAddress
    type: LinkType
    width: int = 1


class DeliveryMode(enum.StrEnum):
    """How guests get GPUs.

    ``PCI``: whole, by PCI passthrough. ``LXC``: whole, by the host's device nodes. ``VGPU``: a part
    of a card, which is a vGPU or a MIG instance.
    """

    PCI = "pci"
    LXC = "lxc"
    VGPU = "vgpu"

    @classmethod
    def of_whole_cards(cls, virt_type: str) -> DeliveryMode:
        """Return the mode in which a host with this ``[libvirt]virt_type`` gives whole cards."""
        return cls.LXC if virt_type == "lxc" else cls.PCI


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Product:
    """A product of a PCI vendor, with its known facts.

    The ids have four lower-case hex digits, as in sysfs without ``0x``. A fact that is ``None`` is
    unknown, and satisfies no condition of a flavor. ``board`` are the subsystem ids (``10de:157e``)
    of boards that the operator offers apart from the product's others, else ``None``.
    """

    vendor_id: str
    product_id: str
    name: str | None = None
    architecture: str | None = None
    memory_mib: int | None = None
    compute_capability: tuple[int, int] | None = None
    board: str | None = None

    @property
    def key(self) -> str:
        """The ids as operators and lspci write them, ``10de:2335``."""
        return f"{self.vendor_id}:{self.product_id}"

    def completed_by(self, other: Product) -> Product:
        """Return this product with unknown facts filled in from *other*."""
        return Product(
            self.vendor_id,
            self.product_id,
            name=self.name or other.name,
            architecture=self.architecture or other.architecture,
            memory_mib=self.memory_mib or other.memory_mib,
            compute_capability=self.compute_capability or other.compute_capability,
            board=self.board or other.board,
        )


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class MIGInstance:
    """A compute instance of a GPU instance; ``None`` for a value that NVML does not report.

    ``profile`` is its size in NVIDIA's notation (``1g.18gb``), ``slices`` its number of compute
    slices.
    """

    gpu_instance: int
    compute_instance: int
    profile: str | None = None
    memory_mib: int | None = None
    slices: int | None = None
    uuid: str | None = None

    @property
    def index(self) -> str:
        """The ids of the GPU instance and the compute instance in NVIDIA's notation, ``9/0``."""
        return f"{self.gpu_instance}/{self.compute_instance}"


@dataclasses.dataclass(frozen=True, slots=True)
class GPU:
    """One whole card of the host, as of the last discovery.

    ``pci_root`` is its root bus (``pci0000:80``). ``pcie_switch`` is the upstream port of the
    switch that the card is behind, ``None`` for a card with a root port of its own. ``subsystem``
    are the ids of its board (``10de:157e``): boards of several names may be one product.
    ``companions`` are the other PCI functions of its slot, such as audio, and ``group_peers`` the
    functions of other selected cards in its IOMMU group. ``mig`` are the MIG instances that NVML
    reports, ``None`` unless NVML reports that the card is in MIG mode.
    """

    address: PciAddress
    product: Product
    class_code: int
    numa_node: int | None = None
    iommu_group: int | None = None
    pci_root: str | None = None
    pcie_switch: PciAddress | None = None
    driver: str | None = None
    subsystem: str | None = None
    companions: tuple[PciAddress, ...] = ()
    group_peers: tuple[PciAddress, ...] = ()
    links: tuple[Link, ...] = ()
    uuid: str | None = None
    mig: tuple[MIGInstance, ...] | None = None

    @property
    def functions(self) -> tuple[PciAddress, ...]:
        """All PCI functions of the card's slot, in order. A KVM guest gets all of them."""
        return tuple(sorted((self.address, *self.companions)))


class GroupKey(NamedTuple):
    """The identity of a group of whole cards or vGPUs on a host; a group is a resource provider.

    ``vgpu_type`` is the id of the vGPU type; it is set if and only if the mode is ``VGPU``.
    ``board`` is that of :class:`Product`, for whole cards only.
    """

    vendor_id: str
    product_id: str
    mode: DeliveryMode
    vgpu_type: str | None = None
    board: str | None = None

    @classmethod
    def of_whole(cls, product: Product, mode: DeliveryMode) -> GroupKey:
        """Return the key of the group of whole cards to which new cards of *product* belong."""
        return cls(product.vendor_id, product.product_id, mode, board=product.board)

    @classmethod
    def of_parts(cls, vendor_id: str, product_id: str, vgpu_type: str) -> GroupKey:
        return cls(vendor_id, product_id, DeliveryMode.VGPU, vgpu_type)

    @property
    def is_in_parts(self) -> bool:
        return self.mode is DeliveryMode.VGPU

    @property
    def product(self) -> str:
        """The ids of the group's product, ``10de:25b6``, and of its boards if it has a board's."""
        ids = f"{self.vendor_id}:{self.product_id}"
        return ids if self.board is None else f"{ids}:{self.board}"


@dataclasses.dataclass(frozen=True, slots=True)
class GPUGroup:
    """All cards of one product in one delivery mode on one host: one resource provider.

    ``unavailable`` are the members of ``gpus`` that cannot be given to new instances now. They stay
    in the group because an instance may hold them.
    """

    key: GroupKey
    product: Product
    gpus: Mapping[PciAddress, GPU]
    unavailable: Mapping[PciAddress, Reasons] = dataclasses.field(default_factory=dict)
