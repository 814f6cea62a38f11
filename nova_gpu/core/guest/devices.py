# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a guest as metadata: a list of them, and NCCL's topology file.

NCCL finds the topology by itself, and reads the speed of links from sysfs. In a guest it finds the
link of the port that QEMU emulates there, which claims 2.5 GT/s and one lane. The topology file
takes precedence: NCCL looks up a device in it by its bus id, and uses the file's place and link
(``ncclTopoGetXmlFromSys`` in NCCL's src/graph/xml.cc). Its parser does not accept an XML
declaration.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypedDict
from xml.sax import saxutils

from nova_gpu.core import json_text, metadata_text, names
from nova_gpu.core.guest.tree import GuestPlace
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu.vgpu import VGPUType

_BRIDGE = "0x060400"


class PcieLink(TypedDict):
    """A PCI Express link: its speed in Linux' notation, ``32.0 GT/s PCIe``, and its lanes."""

    speed: str
    width: int


class Switch(TypedDict):
    """A PCI Express switch, identified by the guest's address of its upstream port."""

    address: str
    pcie: PcieLink | None


class Peer(TypedDict):
    """A direct link to the guest's device with the number ``index``.

    ``type`` is a :class:`nova_gpu.core.model.LinkType`, ``width`` the number of lanes or bricks.
    """

    index: int
    type: str
    width: int


class GuestDevice(TypedDict):
    """A GPU or vGPU of a guest. Unknown values are null.

    ``numa_node`` and ``address`` are the guest's. ``index`` is the device's number in the guest's
    nvidia-smi, which sorts by address; ``pcie`` is the card's link on the host.
    """

    index: int
    model: str | None
    memory_mib: int | None
    numa_node: int | None
    address: str | None
    pci_class: str | None
    pcie: PcieLink | None
    switch: Switch | None
    links: list[Peer]


def of_cards(
    cards: Iterable[GPU],
    places: Mapping[PciAddress, GuestPlace],
    pcie: Mapping[PciAddress, PcieLink],
) -> list[GuestDevice]:
    """Return the metadata of a guest's *cards*, in the order of the guest's addresses if known.

    :param places: the known places of cards in the guest, by the card's address on the host
    :param pcie: the links of cards and of upstream ports of switches, by address on the host
    """
    gpus = list(cards)
    if all(card.address in places for card in gpus):
        gpus.sort(key=lambda card: places[card.address].address)
    indexes = {card.address: index for index, card in enumerate(gpus)}
    return [_of_card(index, card, indexes, places, pcie) for index, card in enumerate(gpus)]


def _of_card(
    index: int,
    card: GPU,
    indexes: Mapping[PciAddress, int],
    places: Mapping[PciAddress, GuestPlace],
    pcie: Mapping[PciAddress, PcieLink],
) -> GuestDevice:
    place = places.get(card.address)
    switch: Switch | None = None
    if place and place.switch and card.pcie_switch:
        switch = {"address": str(place.switch), "pcie": pcie.get(card.pcie_switch)}
    return {
        "index": index,
        "model": card.product.name,
        "memory_mib": card.product.memory_mib,
        "numa_node": place.node if place else None,
        "address": str(place.address) if place else None,
        "pci_class": f"0x{card.class_code:06x}",
        "pcie": pcie.get(card.address),
        "switch": switch,
        "links": [
            {"index": indexes[link.peer], "type": link.type.value, "width": link.width}
            for link in sorted(card.links)
            if link.peer in indexes
        ],
    }


def of_part(index: int, facts: VGPUType) -> GuestDevice:
    """Return the metadata of a vGPU or MIG instance of the type *facts*."""
    return {
        "index": index,
        "model": facts.name or facts.id,
        "memory_mib": facts.memory_mib,
        "numa_node": None,
        "address": None,
        "pci_class": None,
        "pcie": None,
        "switch": None,
        "links": [],
    }


# NCCL's topology file


def nccl_topology(devices: Sequence[GuestDevice]) -> str | None:
    """Return the topology file for a guest, which NCCL reads if ``NCCL_TOPO_FILE`` names it.

    Return ``None`` if the guest has one device only, or the address of a device is unknown.
    """
    if len(devices) < 2 or any(device["address"] is None for device in devices):
        return None
    lines = ['<system version="1">']
    for node in dict.fromkeys(device["numa_node"] for device in devices):
        # The kernel reports -1 for a device whose node it does not know.
        lines.append(f'  <cpu numaid="{-1 if node is None else node}">')
        lines += _on_node([device for device in devices if device["numa_node"] == node])
        lines.append("  </cpu>")
    return "\n".join([*lines, "</system>", ""])


def _on_node(devices: Sequence[GuestDevice]) -> Iterator[str]:
    below: dict[str | None, list[GuestDevice]] = {}
    for device in devices:
        below.setdefault(device["switch"] and device["switch"]["address"], []).append(device)
    for address, own in below.items():
        indent = "    "
        if switch := own[0]["switch"]:
            yield f"{indent}{_pci(address, _BRIDGE, switch['pcie'])}>"
            indent += "  "
        for node in own:
            yield f"{indent}{_pci(node['address'], node['pci_class'], node['pcie'])}/>"
        if switch:
            yield "    </pci>"


def _pci(address: str | None, class_code: str | None, pcie: PcieLink | None) -> str:
    """Return the opening tag of a PCI device in NCCL's XML, without the closing ``>`` or ``/>``.

    Attributes that are unknown are left out: NCCL asks the guest's kernel for these.
    """
    attributes: dict[str, object] = {"busid": address}
    if class_code:
        attributes["class"] = class_code
    if pcie:
        attributes |= {"link_speed": pcie["speed"], "link_width": pcie["width"]}
    attributes_text = (
        f"{name}={saxutils.quoteattr(str(value))}" for name, value in attributes.items()
    )
    return " ".join(["<pci", *attributes_text])


# The form that is stored with the instance


def to_metadata(devices: Sequence[GuestDevice]) -> dict[str, str]:
    """Return the items for an instance's ``system_metadata`` that hold *devices* as JSON."""
    text = json.dumps(devices, separators=(",", ":")) if devices else ""
    return metadata_text.split(names.GUEST_DEVICES, text)


def of_metadata(metadata: Mapping[str, str]) -> list[GuestDevice]:
    """Return the devices that :func:`to_metadata` has encoded in *metadata*.

    Return an empty list if there are none or they cannot be parsed.
    """
    try:
        entries = json_text.parse(metadata_text.joined(names.GUEST_DEVICES, metadata) or "[]")
    except ValueError:
        return []
    return entries if isinstance(entries, list) else []
