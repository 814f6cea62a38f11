# SPDX-License-Identifier: Apache-2.0
"""Which cards are given in parts, and in which, as the options and the host have it."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from oslo_utils import versionutils

from nova_gpu.conf import CONF
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu import vgpu_room
from nova_gpu.core.vgpu.vgpu import DividedCard, Kind
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio import passthrough
from nova_gpu.host.vgpu import division, virtual_functions
from nova_gpu.virt.delivery.pci_aliases import DeviceSpec
from nova_gpu.virt.inventory.vgpu_types import VGPUTypes


@dataclasses.dataclass(frozen=True, slots=True)
class Ways:
    """How the cards of a host are divided, as :func:`nova_gpu.host.vgpu.division.divided` tells it,
    and why guests cannot have parts of one.
    """

    divided: Callable[[Iterable[GPU], division.Told], dict[PciAddress, DividedCard]]
    obstacle: Callable[[GPU, DividedCard], str | None]


# Since then it leaves a function of managed='no' with whatever VFIO driver has it (its NEWS).
TYPED_LIBVIRT = (10, 0, 0)


def for_machines(
    device_spec: DeviceSpec,
    roots: Roots,
    libvirt_version: Callable[[], int | None],
    types: VGPUTypes | None = None,
) -> Ways:
    """The ways for guests that get PCI functions and mediated devices.

    :param libvirt_version: of the host, as libvirt counts; ``None`` where it is not known
    :param types: completes what the driver tells of vGPU types, where that is wanted
    """

    def divided(cards: Iterable[GPU], told: division.Told) -> dict[PciAddress, DividedCard]:
        gpus = tuple(cards)
        found = division.divided(gpus, roots, told)
        return types.complete(gpus, found) if types else found

    return Ways(
        divided=divided,
        obstacle=lambda _, card: _obstacle(card, device_spec, roots, libvirt_version),
    )


def sorted_out(
    gpus: Mapping[PciAddress, GPU], divided: Mapping[PciAddress, DividedCard], ways: Ways
) -> tuple[dict[PciAddress, SharedCard], dict[PciAddress, str]]:
    """The cards that are given in parts, and why others of *divided* are not given at all."""
    cards, others = {}, {}
    for address, card in divided.items():
        if reason := card.unread or _novas_own(card):
            others[address] = reason
        elif part := selected(card):
            if reason := ways.obstacle(gpus[address], part):
                others[address] = reason
            else:
                cards[address] = SharedCard(gpus[address], part)
        elif card.has_instances:
            others[address] = (
                "it is divided into MIG instances, of types that [gpu]vgpu_types does not name; "
                "name their type, or turn MIG mode off (nvidia-smi -mig 0)"
            )
        elif any(parent.made for parent in card.parents.values()):
            others[address] = (
                "somebody has made vGPUs of it, of types that [gpu]vgpu_types does not name; "
                "remove those, or name their type"
            )
    return cards, others


def in_parts(
    found: Iterable[GPU], ways: Ways, told: division.Told = MappingProxyType({})
) -> tuple[dict[PciAddress, DividedCard], dict[PciAddress, str]]:
    """The cards of *found* that nova-compute would give in parts if it was started now, with the
    types that are offered, and why it would give none of others that are divided; but for those
    that an instance has whole.

    :param told: as :func:`nova_gpu.host.vgpu.division.divided`
    :raises OSError: where the kernel does not tell which mediated devices there are
    """
    gpus = {gpu.address: gpu for gpu in found}
    cards, others = sorted_out(gpus, ways.divided(gpus.values(), told), ways)
    return {address: shared.card for address, shared in cards.items()}, others


def selected(card: DividedCard) -> DividedCard | None:
    """*card* with the types that [gpu]vgpu_types names, ``None`` where it has none of those.

    How many of each it carries may only be seen beside the others, so that it is told here.
    """
    patterns = CONF.gpu.vgpu_types
    types = {
        type_id: dataclasses.replace(facts, per_card=vgpu_room.carried(card, type_id))
        for type_id, facts in card.types.items()
        if any(
            fnmatch.fnmatchcase(n, each) for n in (type_id, facts.name or "") for each in patterns
        )
    }
    return dataclasses.replace(card, types=types) if types else None


def _novas_own(card: DividedCard) -> str | None:
    """Why Nova's own driver has it: [devices]enabled_mdev_types, and its [mdev_*] sections"""
    mediating = {str(a) for a, parent in card.parents.items() if parent.kind is Kind.MEDIATED}
    for type_id in CONF.devices.enabled_mdev_types:
        section = getattr(CONF, f"mdev_{type_id}", None)
        addresses = section.device_addresses if section else []
        if type_id in card.types and (mediating & {*addresses} if addresses else mediating):
            return (
                f"[devices]enabled_mdev_types names its type {type_id}, so that Nova itself "
                "divides it; take that out to have it offered"
            )
    return None


def _obstacle(
    card: DividedCard,
    device_spec: DeviceSpec,
    roots: Roots,
    libvirt_version: Callable[[], int | None],
) -> str | None:
    """Why guests cannot have those of its functions that are vGPUs themselves"""
    functions = [a for a, parent in card.parents.items() if parent.kind is not Kind.MEDIATED]
    plain = [a for a, parent in card.parents.items() if parent.kind is Kind.PLAIN]
    typed = [a for a, parent in card.parents.items() if parent.kind is Kind.TYPED]
    try:
        if typed and (reason := _too_old(libvirt_version())):
            return reason
        if reason := virtual_functions.typed_obstacle(typed, roots):
            return reason
        if reason := passthrough.without_iommu(functions[:1], roots):
            return reason
        for function in plain:
            if reason := virtual_functions.obstacle(function, roots):
                return reason
        return device_spec.obstacle_of(functions, roots)
    except (OSError, ValueError) as error:
        return f"the host does not tell about it: {error}; see the kernel's log about it"


def _too_old(libvirt: int | None) -> str | None:
    """Why libvirt of that version starts no guest with a function that NVIDIA's driver keeps: it
    would say that it must be manually detached from the host."""
    wanted = ".".join(map(str, TYPED_LIBVIRT))
    if libvirt is None:
        return (
            f"its virtual functions take libvirt {wanted} or newer, and this host's does not tell "
            "its version; see whether it is running"
        )
    version = versionutils.convert_version_to_str(libvirt)
    if libvirt < versionutils.convert_version_to_int(TYPED_LIBVIRT):
        return (
            f"libvirt {version} starts no guest with virtual functions that stay with NVIDIA's "
            f"driver; install {wanted} or newer"
        )
    return None
