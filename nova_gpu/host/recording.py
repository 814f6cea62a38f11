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
from nova_gpu.host.nvidia import nvswitch
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files
from nova_gpu.host.vfio import iommu
from nova_gpu.host.vgpu import sriov

_Entry = dict[str, Any]
_MIB = 1 << 20


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
    """The bridges above a device, the topmost first"""
    try:
        parts = os.readlink(sysfs.device(address, roots)).split("/")[:-1]
    except OSError:
        return []
    return list(_parsed(parts))


def _gpu(address: PciAddress, roots: Roots) -> _Entry:
    device, entry = sysfs.device(address, roots), _device(address, roots)
    information = roots.proc / f"driver/nvidia/gpus/{address}/information"
    minor = gpu_instances.gpu_minor(address, roots)
    if minor is not None:
        entry["minor"] = minor
        if layout := gpu_instances.of_card(address, roots):
            entry["mig"] = [[each.gpu_instance, each.compute_instance] for each in layout]
    if model := _model(information):
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
    """:raises OSError, ValueError: where it cannot be read"""
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
    entry: _Entry = {"numa_node": sysfs.numa_node(device)}
    if group := sysfs.link(device, "iommu_group"):
        entry["iommu_group"] = int(group)
    if bridges := _bridges(address, roots):
        entry["parent"] = str(bridges[-1])
    return entry


def _mapped_mib(address: PciAddress, roots: Roots) -> int:
    """How much of its memory it maps, which is often less than it has: its largest BAR. Which of
    them that is, cards differ in: tests/recorded/bars.yaml.

    :raises OSError, ValueError: as :func:`_device`
    """
    sizes = (end - start + 1 for start, end, _ in sysfs.bars(address, roots))
    return max(sizes, default=0) // _MIB


def _model(information: Any) -> str | None:
    try:
        text = files.read(information)
    except (OSError, ValueError):
        return None
    lines = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == "Model"), None)
