# SPDX-License-Identifier: Apache-2.0
"""A host's cards and what is around them on the bus, as the tests' generated hosts describe one.

Kinds, numbers and places alone: no serial number, uuid or name is read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from nova_gpu.core import exception
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.mig import gpu_instances
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files
from nova_gpu.host.vfio import iommu
from nova_gpu.host.vgpu import sriov

_Entry = dict[str, Any]
_BRIDGE = 0x0604
_NVSWITCH_CLASS = 0x0680
_MIB = 1 << 20
# Of the lines of ``resource``, each start, end and flags, those of the function's own BARs
_BARS = 6


def record(gpus: Collection[GPU], roots: Roots) -> dict[str, list[_Entry]]:
    """What ``tests/fixtures/machines`` has of a host, by the kind of device.

    It has the cards, the other functions of their slots and IOMMU groups, NVSwitches, the virtual
    functions of cards, and the bridges above all of these. One that cannot be read is left out.
    """
    cards = {gpu.address for gpu in gpus}
    virtual = {
        function: gpu.address
        for gpu in gpus
        for function in sriov.virtual_functions(sysfs.device(gpu.address, roots))
    }
    others = sorted(set(_around(gpus, roots)) - cards - virtual.keys())
    above = [bridge for each in [*sorted(cards), *others] for bridge in _bridges(each, roots)]
    bridges = list(dict.fromkeys(above))
    devices = [each for each in others if each not in bridges]
    return {
        "bridges": list(_readable(_bridge, bridges, roots)),
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
    for address in _parsed(os.listdir(roots.sysfs / "bus/pci/devices")):
        device = sysfs.device(address, roots)
        if _class(device) >> 8 == _NVSWITCH_CLASS and sysfs.hexadecimal(device, "vendor") == 0x10DE:
            yield address


def _parsed(names: Iterable[str]) -> Iterator[PciAddress]:
    for name in names:
        try:
            yield PciAddress.parse(name)
        except exception.InvalidPciAddress:
            continue


def _class(device: str) -> int:
    try:
        return sysfs.hexadecimal(device, "class")
    except (OSError, ValueError):
        return 0


def _bridges(address: PciAddress, roots: Roots) -> list[PciAddress]:
    """The bridges above a device, the topmost first"""
    try:
        parts = os.readlink(sysfs.device(address, roots)).split("/")[:-1]
    except OSError:
        return []
    return list(_parsed(parts))


def _bridge(address: PciAddress, roots: Roots) -> _Entry:
    return _place(address, roots)


def _device(address: PciAddress, roots: Roots) -> _Entry:
    return {**_identity(address, roots), **_place(address, roots)}


def _gpu(address: PciAddress, roots: Roots) -> _Entry:
    device = sysfs.device(address, roots)
    entry = {**_identity(address, roots), **_place(address, roots)}
    information = roots.proc / f"driver/nvidia/gpus/{address}/information"
    minor = gpu_instances.gpu_minor(address, roots)
    if minor is not None:
        entry["minor"] = minor
        if layout := gpu_instances.instances(gpu_instances.capabilities(minor, roots)):
            entry["mig"] = [[each.gpu_instance, each.compute_instance] for each in layout]
    if model := _model(information):
        entry["model"] = model
    if sysfs.decimal(device, "boot_vga"):
        entry["boot_vga"] = True
    if total := sysfs.decimal(device, "sriov_totalvfs"):
        entry["totalvfs"] = total
    return {**entry, "mapped_mib": _mapped_mib(device)}


def _virtual_function(address: PciAddress, roots: Roots) -> _Entry:
    entry = {**_identity(address, roots), **_place(address, roots)}
    return {key: entry[key] for key in entry if key not in ("vendor_id", "class_code")}


def _identity(address: PciAddress, roots: Roots) -> _Entry:
    """:raises OSError, ValueError: where it cannot be read"""
    device = sysfs.device(address, roots)
    return {
        "vendor_id": f"{sysfs.hexadecimal(device, 'vendor'):04x}",
        "product_id": f"{sysfs.hexadecimal(device, 'device'):04x}",
        "class_code": sysfs.hexadecimal(device, "class"),
        "driver": iommu.driver(address, roots),
    }


def _place(address: PciAddress, roots: Roots) -> _Entry:
    device = sysfs.device(address, roots)
    node = sysfs.decimal(device, "numa_node")
    entry: _Entry = {"numa_node": None if node is None or node < 0 else node}
    if group := sysfs.link(device, "iommu_group"):
        entry["iommu_group"] = int(group)
    if bridges := _bridges(address, roots):
        entry["parent"] = str(bridges[-1])
    return entry


def _mapped_mib(device: str) -> int:
    """How much of its memory it maps, which is often less than it has: its largest BAR. Which of
    them that is, cards differ in: tests/recorded/bars.yaml.

    :raises OSError, ValueError: as :func:`_identity`
    """
    sizes = []
    for line in sysfs.attribute(device, "resource").splitlines()[:_BARS]:
        start, end, _ = (int(word, 16) for word in line.split())
        sizes.append(end - start + 1 if end > start else 0)
    return max(sizes, default=0) // _MIB


def _model(information: Any) -> str | None:
    try:
        text = files.read(information)
    except (OSError, ValueError):
        return None
    lines = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == "Model"), None)
