# SPDX-License-Identifier: Apache-2.0
"""Reads a recording of this host: its cards, the PCI bus around them, and answers of NVML.

It contains no serial number, no hostname and no uuid; a number replaces the uuid of an NVLink
fabric.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from nova_gpu.core import exception
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.mig import gpu_instances
from nova_gpu.host.nvidia import nvml, nvml_vgpus, proc
from nova_gpu.host.pci import iommu, nvswitch, sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.vgpu import sriov

_Entry = dict[str, Any]
_MIB = 1 << 20
_NO_FABRIC = "0" * 32


def record(gpus: Collection[GPU], roots: Roots) -> dict[str, list[_Entry]]:
    """Return an entry for each PCI device of a recording, by the kind of device.

    They are the cards, the other functions of their slots and IOMMU groups, NVSwitches, the virtual
    functions of cards, and the bridges above all of these. A device that cannot be read is left
    out. The format is that of ``tests/fixtures/machines``.
    """
    cards = {gpu.address for gpu in gpus}
    virtual = {
        function: gpu.address
        for gpu in gpus
        for function in sriov.virtual_functions(sysfs.device(gpu.address, roots)).values()
    }
    others = sorted(set(_around(gpus, roots)) - cards - virtual.keys())
    above = [bridge for address in [*sorted(cards), *others] for bridge in _bridges(address, roots)]
    bridges = list(dict.fromkeys(above))
    devices = [other for other in others if other not in bridges]
    return {
        "bridges": list(_readable(_place, bridges, roots)),
        "devices": list(_readable(_device, devices, roots)),
        "gpus": list(_readable(_gpu, sorted(cards), roots)),
        "vfs": [
            {**entry, "physfn": str(virtual[PciAddress.parse(entry["addresses"][0])])}
            for entry in _readable(_virtual_function, sorted(virtual), roots)
        ],
    }


def _readable(describe: Any, addresses: Iterable[PciAddress], roots: Roots) -> Iterator[_Entry]:
    for address in addresses:
        try:
            yield {"addresses": [str(address)], **describe(address, roots)}
        except (OSError, ValueError):
            continue


def _around(gpus: Iterable[GPU], roots: Roots) -> Iterator[PciAddress]:
    for gpu in gpus:
        for function in gpu.functions:
            yield function
            yield from _parsed(iommu.group_members(function, roots))
    yield from _parsed(nvswitch.switches(roots))


def _parsed(names: Iterable[str]) -> Iterator[PciAddress]:
    for name in names:
        try:
            yield PciAddress.parse(name)
        except exception.InvalidPciAddress:
            continue


def _bridges(address: PciAddress, roots: Roots) -> list[PciAddress]:
    """Return the addresses of the PCI bridges above a device, the topmost first."""
    try:
        parts = os.readlink(sysfs.device(address, roots)).split("/")[:-1]
    except OSError:
        return []
    return list(_parsed(parts))


def _gpu(address: PciAddress, roots: Roots) -> _Entry:
    device, entry = sysfs.device(address, roots), _device(address, roots)
    minor = gpu_instances.gpu_minor(address, roots)
    if minor is not None:
        entry["minor"] = minor
        if layout := gpu_instances.of_card(address, roots):
            entry["mig"] = [
                [instance.gpu_instance, instance.compute_instance] for instance in layout
            ]
    if model := proc.card(address, roots).get("Model"):
        entry["model"] = model
    if sysfs.decimal(device, "boot_vga"):
        entry["boot_vga"] = True
    if total := sysfs.decimal(device, "sriov_totalvfs"):
        entry["totalvfs"] = total
    return {**entry, "mapped_mib": _mapped_mib(address, roots)}


def _virtual_function(address: PciAddress, roots: Roots) -> _Entry:
    entry = _device(address, roots)
    return {key: entry[key] for key in entry if key not in ("vendor_id", "class_code")}


def _device(address: PciAddress, roots: Roots) -> _Entry:
    """Return the entry of a PCI device."""
    device = sysfs.device(address, roots)
    vendor_id, product_id = sysfs.ids(device)
    return {
        "vendor_id": vendor_id,
        "product_id": product_id,
        "class_code": sysfs.hexadecimal(device, "class"),
        "driver": iommu.driver(address, roots),
        **_place(address, roots),
    }


def _place(address: PciAddress, roots: Roots) -> _Entry:
    device = sysfs.device(address, roots)
    group = sysfs.link(device, "iommu_group")
    entry: _Entry = {
        "numa_node": sysfs.numa_node(device),
        "iommu_group": int(group) if group else None,
    }
    if bridges := _bridges(address, roots):
        entry["parent"] = str(bridges[-1])
    return entry


def _mapped_mib(address: PciAddress, roots: Roots) -> int:
    """Return the size in MiB of the card's largest BAR, which maps all or part of its memory.

    Cards differ in which BAR that is: tests/recorded/bars.yaml.
    """
    sizes = (end - start + 1 for start, end, _ in sysfs.bars(address, roots))
    return max(sizes, default=0) // _MIB


def record_nvml(addresses: Iterable[PciAddress], timeout_s: float) -> list[_Entry]:
    """Return an entry with NVML's answers for each card that NVML sees.

    The format is that of ``tests/fixtures/nvml.py``, whose NVML gives the same answers.
    """
    cards = nvml.read(nvml.run([], timeout_s), "gpus")
    types = _vgpu_types(nvml_vgpus.ask(addresses, timeout_s))
    clusters: dict[str, int] = {_NO_FABRIC: 0}
    gpus = []
    for address, answer in sorted(cards.items()):
        try:
            entry = dict(_card(answer, clusters)) | types.get(address, {})
        except (LookupError, TypeError, ValueError, AttributeError):
            continue  # the readers report what they cannot understand
        gpus.append({"address": str(address), **entry})
    return gpus


def _card(answer: Mapping[str, Any], clusters: dict[str, int]) -> Iterator[tuple[str, Any]]:
    yield "name", answer["name"]
    yield "architecture", answer["architecture"]
    yield "memory_mib", answer["memory"] and answer["memory"] // _MIB
    yield (
        "capability",
        answer["compute_capability"] and ".".join(map(str, answer["compute_capability"])),
    )
    if answer["nvlinks"]:
        links = collections.Counter((peer, kind) for peer, kind in answer["nvlinks"])
        yield "links", [[peer, kind, count] for (peer, kind), count in links.items()]
    if answer["switched_links"]:
        yield "switched_links", answer["switched_links"]
    if fabric := answer["fabric"]:
        cluster = clusters.setdefault(fabric["cluster"], len(clusters))
        yield "fabric", [fabric["state"], fabric["status"], fabric["clique"], cluster]
    if answer["mig"] is not None:
        yield "mig", [_instance(instance) for instance in answer["mig"]]


def _instance(answer: Mapping[str, Any]) -> _Entry:
    return {
        "gpu_instance": answer["gpu_instance"],
        "compute_instance": answer["compute_instance"],
        "profile": (answer["name"] or "").rpartition(" MIG ")[2],
        "memory_mib": answer["memory_mib"],
        "slices": answer["slices"],
    }


def _vgpu_types(answer: str) -> Mapping[PciAddress, _Entry]:
    """Return the vGPU types and the numbers of GPU instances by profile, for each card."""
    try:
        cards = nvml.read(answer.encode(), "cards")
    except nvml.NoAnswer:
        return {}
    return {address: dict(_types(answer)) for address, answer in cards.items()}


def _types(answer: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if types := answer.get("types"):
        yield "types", {vgpu_type["id"]: _type(vgpu_type) for vgpu_type in types}
    if instances := answer.get("instances"):
        yield "instances", {int(profile): count for profile, count in instances.items()}


# Of a type, where the library tells it
_ALSO = ("profile", "per_instance", "per_guest")


def _type(answer: Mapping[str, Any]) -> _Entry:
    entry = {
        "name": answer["name"],
        "memory_mib": answer["memory"] and answer["memory"] // _MIB,
        "most": answer["most"],
        "heads": answer["heads"],
        "resolution": answer["resolution"] and "x".join(map(str, answer["resolution"])),
    }
    return entry | {key: answer[key] for key in _ALSO if answer[key] is not None}
