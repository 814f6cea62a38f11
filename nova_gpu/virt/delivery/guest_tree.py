# SPDX-License-Identifier: Apache-2.0
"""The host's PCI Express tree and NUMA nodes, rebuilt in a KVM guest's domain XML."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from lxml import etree
from nova.virt import hardware
from nova.virt.libvirt import config as vconfig

from nova_gpu.core import exception
from nova_gpu.core.flavor.placement_policy import GuestTopology
from nova_gpu.core.guest import tree
from nova_gpu.core.guest.tree import Controller, GuestPlace, Tree
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.virt.delivery import guest_address_space

if TYPE_CHECKING:
    from nova import objects

    from nova_gpu.core.flavor.request import FlavorRequest

# Devices that take no slot on the guest's PCI root. Every other device counts as one slot, although
# some take none. libvirt adds a USB controller, a serial controller and a balloon if Nova defines
# none.
_WITHOUT_SLOT = (
    vconfig.LibvirtConfigGuestSerial,
    vconfig.LibvirtConfigGuestConsole,
    vconfig.LibvirtConfigGuestChannel,
    vconfig.LibvirtConfigGuestGraphics,
    vconfig.LibvirtConfigGuestPCIeRootController,
)
_ADDED_BY_LIBVIRT = 3
_PORT = vconfig.LibvirtConfigGuestPCIeRootPortController


def of(
    instance: objects.Instance,
    request: FlavorRequest,
    cards: Sequence[GPU],
    machine_type: str | None,
    roots: Roots,
) -> Tree | None:
    """Return the PCI Express tree that the guest gets for *cards*, modelled on the host's.

    Return ``None`` if all cards are to be on the guest's PCI root.

    :raises GuestUnfit: if the flavor requires a tree that the guest cannot have
    :raises DeviceUnavailable: if a card cannot be read
    """
    if request.guest_topology is GuestTopology.FLAT:
        return None
    if request.guest_topology is GuestTopology.AUTO and not (
        tree.says_more(cards)
        or (
            _tells_cells_apart(instance, cards)
            # In a tree the same cards take more address space.
            and guest_address_space.has_room(instance, request, cards, roots, tree=True)
        )
    ):
        return None
    host_tree = tree.of(cards) if "q35" in (machine_type or "") else None
    with_io = 0
    if host_tree and len(cards) > tree.OVMF_MOST_WITH_IO:
        with_io = guest_address_space.with_io(instance, cards, roots)
    if request.guest_topology is GuestTopology.REQUIRED:
        _refuse(instance, host_tree, machine_type, with_io)
    return host_tree if with_io <= tree.OVMF_MOST_WITH_IO else None


def _tells_cells_apart(instance: objects.Instance, cards: Sequence[GPU]) -> bool:
    """Return whether the guest has several cells of Nova's, and *cards* have a node to show it."""
    cells = instance.numa_topology.cells if instance.numa_topology else ()
    return len(cells) > 1 and any(card.numa_node is not None for card in cards)


def _refuse(
    instance: objects.Instance, host_tree: Tree | None, machine_type: str | None, with_io: int
) -> None:
    """Refuse a guest that cannot have the PCI Express tree and NUMA nodes that its flavor requires.

    :param host_tree: the tree, ``None`` if it does not fit into a guest
    :param with_io: the number of cards that get I/O ports from UEFI
    :raises GuestUnfit: with the reason
    """
    if "q35" not in (machine_type or ""):
        raise exception.GuestUnfit(
            f"its flavor requires the host's PCI Express tree in the guest, and machine type "
            f"{machine_type} cannot have it",
            "give the image hw_machine_type=q35, or the flavor gpu:guest_topology=auto",
        )
    if host_tree is None:
        raise exception.GuestUnfit(
            "its flavor requires the host's PCI Express tree in the guest, and a guest has too few "
            "bus numbers for that of its GPUs",
            "ask for fewer, or give the flavor gpu:guest_topology=auto",
        )
    if with_io > tree.OVMF_MOST_WITH_IO:
        raise exception.GuestUnfit(
            "its flavor requires the host's PCI Express tree in the guest, whose UEFI has room "
            f"there for {tree.OVMF_MOST_WITH_IO} GPUs that have a BAR with I/O ports, and "
            f"{with_io} of its GPUs have one",
            "ask for fewer, use an image without hw_firmware_type=uefi, or give the flavor "
            "gpu:guest_topology=auto",
        )
    if instance.numa_topology is None:
        return
    own = {cell.id for cell in instance.numa_topology.cells}
    if lacking := [str(node) for node in host_tree.nodes if node not in own]:
        raise exception.GuestUnfit(
            "its flavor requires the host's NUMA nodes in the guest, and the NUMA cells that its "
            f"flavor or image asks for are not on node {', '.join(lacking)}, where its GPUs are",
            "ask for no NUMA cells (hw:numa_nodes, hw:mem_page_size, hw:cpu_policy), for as many "
            "as the host has nodes, or give the flavor gpu:guest_topology=auto",
        )


# The tree


class GuestController(vconfig.LibvirtConfigGuestController):  # type: ignore[misc]
    """The controller element of one bridge, port or expander of a guest's PCI Express tree.

    :param cell: the id of the guest's NUMA cell that an expander belongs to, else ``None``
    """

    def __init__(self, controller: Controller, cell: int | None) -> None:
        super().__init__()
        self.type, self.model, self.index = "pci", controller.model, controller.index
        self.controller = controller
        self.cell = cell

    def format_dom(self) -> etree._Element:
        element: etree._Element = super().format_dom()
        if self.controller.bus_number is None:
            bus, slot = f"0x{self.controller.above:02x}", f"0x{self.controller.slot:02x}"
            place = {"type": "pci", "domain": "0x0000", "bus": bus, "slot": slot}
            etree.SubElement(element, "address", place, function="0x0")
            return element
        target = etree.SubElement(element, "target", busNr=str(self.controller.bus_number))
        if self.cell is not None:
            etree.SubElement(target, "node").text = str(self.cell)
        return element


def controllers(
    guest: vconfig.LibvirtConfigGuest, of_cards: Tree
) -> Iterator[vconfig.LibvirtConfigGuestDevice]:
    """Yield the controllers of the tree, then ports on the guest's root if Nova defines none.

    The ports are for Nova's devices, and one more for a device that is attached later: if a domain
    defines controllers, libvirt adds only those that its devices need. The guest's NUMA cells must
    be in *guest* already.
    """
    by_node = _cells(guest)
    for controller in of_cards.controllers:
        cell = None if controller.node is None else by_node.get(controller.node)
        yield GuestController(controller, cell)
    if not has_ports(guest):
        taken = sum(not isinstance(device, _WITHOUT_SLOT) for device in guest.devices)
        yield from ports(len(of_cards.controllers) + 1, taken + _ADDED_BY_LIBVIRT + 1)


def has_ports(guest: vconfig.LibvirtConfigGuest) -> bool:
    return any(isinstance(device, _PORT) for device in guest.devices)


def ports(first: int, count: int) -> Iterator[vconfig.LibvirtConfigGuestDevice]:
    """Yield *count* ports on the guest's root, whose indexes begin with *first*.

    Without an index libvirt would give the first port index 0, although that is the index of the
    guest's root, which is not in the XML.
    """
    for index in range(first, first + count):
        port = _PORT()
        port.index = index
        yield port


def places(guest: vconfig.LibvirtConfigGuest, of_cards: Tree) -> Mapping[PciAddress, GuestPlace]:
    """Return the address and NUMA node of each card in the guest, by its host address."""
    by_node = _cells(guest)
    return {
        card: dataclasses.replace(place, node=by_node.get(-1 if place.node is None else place.node))
        for card, place in of_cards.places().items()
    }


def _cells(guest: vconfig.LibvirtConfigGuest) -> Mapping[int, int]:
    """Return the ids of the guest's NUMA cells, by the host's NUMA node that each cell is on."""
    tune = guest.numatune
    nodes = tune.memnodes if tune is not None else ()
    return {node: cell.cellid for cell in nodes for node in cell.nodeset}


# NUMA cells


def add_cells(guest: vconfig.LibvirtConfigGuest, of_cards: Tree, roots: Roots) -> None:
    """Give a guest a NUMA cell on each node of its cards, unless its flavor or image states cells.

    Nova counts neither memory nor processors of such a guest by node. So each cell's memory only
    prefers its node, and its vCPUs are pinned to all processors of the node that the guest may use.
    """
    if (guest.cpu is not None and guest.cpu.numa is not None) or not of_cards.nodes:
        return
    if guest.cpu is None:
        guest.cpu = vconfig.LibvirtConfigGuestCPU()
    guest.cpu.numa = vconfig.LibvirtConfigGuestCPUNUMA()
    guest.numatune = vconfig.LibvirtConfigGuestNUMATune()
    for number, cell in enumerate(tree.cells(of_cards.nodes, guest.vcpus, guest.memory >> 10)):
        element = vconfig.LibvirtConfigGuestCPUNUMACell()
        element.id, element.memory = number, cell.memory_mib << 10
        element.cpus = set(cell.cpus) or None
        guest.cpu.numa.cells.append(element)
        memory = vconfig.LibvirtConfigGuestNUMATuneMemNode()
        memory.cellid, memory.mode, memory.nodeset = number, "preferred", [cell.node]
        guest.numatune.memnodes.append(memory)
        _pin(guest, cell, roots)


def _pin(guest: vconfig.LibvirtConfigGuest, cell: tree.Cell, roots: Roots) -> None:
    # Under emulation (TCG) a vCPU does not have a thread to pin with every QEMU.
    if guest.virt_type != "kvm":
        return
    of_node = sysfs.cpulist(cell.node, roots)
    allowed = hardware.parse_cpu_spec(of_node) if of_node else set()
    if guest.cpuset:
        allowed &= set(guest.cpuset)
    if not allowed:
        return
    if guest.cputune is None:
        guest.cputune = vconfig.LibvirtConfigGuestCPUTune()
    for cpu in cell.cpus:
        pin = vconfig.LibvirtConfigGuestCPUTuneVCPUPin()
        pin.id, pin.cpuset = cpu, allowed
        guest.cputune.vcpupin.append(pin)
