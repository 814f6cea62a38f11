# SPDX-License-Identifier: Apache-2.0
"""Discovery of a host's GPUs, each of which is one card, by its PCI functions in sysfs.

Each reader raises DiscoveryFailed if the functions cannot be listed (:func:`_names`).
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import logging
import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from nova_gpu.core import exception, model, vendors
from nova_gpu.host import products
from nova_gpu.host.nvidia import nvml as nvml_facts
from nova_gpu.host.pci import direct_links, sysfs
from nova_gpu.host.pci.selection import Selection
from nova_gpu.host.roots import Roots

LOG = logging.getLogger(__name__)

_FUNCTIONS = range(8)

NvmlQuery = Callable[[], Mapping[model.PciAddress, nvml_facts.NvmlFacts]]


def discover(
    roots: Roots,
    selection: Selection,
    overrides: Mapping[str, model.Product],
    nvml: NvmlQuery,
) -> tuple[model.GPU, ...]:
    """Return the host's cards that the options select, sorted by address.

    A card that cannot be read, or disappears meanwhile, is left out. A fact about a product comes
    from *overrides*, else from NVML, else from the built-in table.

    :param overrides: the products of ``[gpu]product``, as :func:`products.parse_overrides`
    :param nvml: queries NVML; called only if a selected card is bound to the nvidia driver
    """
    cards = list(_scan(roots, selection))
    for address in selection.addresses - {card.address for card in cards}:
        _report_missing(address)
    return _completed(cards, roots, overrides, nvml)


def _completed(
    cards: Collection[model.GPU],
    roots: Roots,
    overrides: Mapping[str, model.Product],
    nvml: NvmlQuery,
) -> tuple[model.GPU, ...]:
    driven = {(card.product.vendor_id, card.driver) for card in cards}
    facts = nvml() if (vendors.NVIDIA, "nvidia") in driven else {}
    xgmi_links = direct_links.of_xgmi(roots.sysfs) if (vendors.AMD, "amdgpu") in driven else {}
    groups: dict[int | None, list[model.PciAddress]] = {}
    for card in cards:
        groups.setdefault(card.iommu_group, []).extend(card.functions)
    completed = []
    for card in sorted(cards, key=lambda card: card.address):
        known, key = facts.get(card.address, nvml_facts.NvmlFacts()), card.product.key
        by_nvml = dataclasses.replace(
            card.product,
            name=known.name,
            architecture=known.architecture,
            memory_mib=known.memory_mib,
            compute_capability=known.compute_capability,
        )
        of_board = overrides.get(f"{key}:{card.subsystem}", card.product)
        product = of_board.completed_by(overrides.get(key, card.product)).completed_by(by_nvml)
        product = product.completed_by(products.table().get(key, card.product))
        if product.architecture is None:
            _report_unknown(key)
        in_group = groups[card.iommu_group] if card.iommu_group is not None else []
        completed.append(
            dataclasses.replace(
                card,
                product=product,
                group_peers=tuple(sorted({*in_group}.difference(card.functions))),
                links=known.links or xgmi_links.get(card.address, ()),
                uuid=known.uuid,
                mig=known.mig,
            )
        )
    return tuple(completed)


def cards_at(addresses: Iterable[model.PciAddress], roots: Roots) -> tuple[model.GPU, ...]:
    """Return the cards at *addresses*, of any vendor, without the facts that NVML reports.

    Addresses without a card are ignored.
    """
    selection = Selection(vendors=frozenset(), addresses=frozenset(addresses))
    if not selection.addresses:
        return ()
    return _completed(list(_scan(roots, selection)), roots, {}, dict)


def card_at(address: model.PciAddress, roots: Roots) -> model.GPU | None:
    """Return the card at *address* as :func:`cards_at` does, ``None`` if there is none."""
    return next(iter(cards_at([address], roots)), None)


def _names(root: pathlib.Path) -> list[str]:
    """Return the addresses of all PCI functions; an empty list on a host without a PCI bus.

    :raises DiscoveryFailed: if they cannot be listed, or *root* is not a sysfs, because a host
        whose cards are invisible must not count as one without cards
    """
    folder = root / "bus/pci/devices"
    try:
        return os.listdir(folder)
    except FileNotFoundError as error:
        if (root / "bus").is_dir() and not (root / "bus/pci").exists():
            return []
        raise exception.DiscoveryFailed(str(folder), "it does not exist") from error
    except OSError as error:
        raise exception.DiscoveryFailed(str(folder), error.strerror or str(error)) from error


def _scan(roots: Roots, selection: Selection) -> Iterator[model.GPU]:
    """Yield the cards that *selection* selects, with the facts in sysfs only.

    Warn of PCI functions that cannot be read.
    """
    devices, present = f"{roots.sysfs}/bus/pci/devices", frozenset(_names(roots.sysfs))
    slots = set()
    for name in sorted(present):  # function 0 of a slot first
        device = f"{devices}/{name}"
        try:
            # One call tells that a function is virtual, three tell its class: in this order
            # hundreds of virtual functions cost little.
            if _is_virtual_function(device):
                continue
            class_code = sysfs.hexadecimal(device, "class")
            slot = name.rpartition(".")[0]
            if class_code >> 8 not in products.CLASSES or slot in slots:
                continue
            card = _read(device, name, class_code)
            takes = selection.takes(card.address, card.product, class_code)
            # Several displays in one slot are one card, because another guest cannot get the second
            # one.
            if takes or products.is_gpu(card.product.vendor_id, class_code):
                slots.add(slot)
            if takes:
                companions = _companions(devices, card.address, present)
                yield dataclasses.replace(card, companions=companions)
        except (OSError, ValueError, exception.InvalidPciAddress) as error:
            if not _vanished(device, error):
                LOG.warning(
                    "Cannot read PCI function %s, so it is not offered: %s. If it is a GPU, see "
                    "the kernel's log about it.",
                    name,
                    error,
                )


def _read(device: str, name: str, class_code: int) -> model.GPU:
    address = model.PciAddress.parse(name)
    if str(address) != name:
        raise ValueError("the kernel would call it " + str(address))
    vendor_id, product_id = sysfs.ids(device)
    pci_root, pcie_switch = sysfs.above(device)
    return model.GPU(
        address=address,
        product=model.Product(vendor_id, product_id),
        class_code=class_code,
        numa_node=sysfs.numa_node(device),
        iommu_group=_iommu_group(device),
        pci_root=pci_root,
        pcie_switch=pcie_switch,
        driver=sysfs.link(device, "driver"),
        subsystem=sysfs.subsystem(device),
    )


def _iommu_group(device: str) -> int | None:
    name = sysfs.link(device, "iommu_group")
    if name is None:
        return None
    if not (name.isascii() and name.isdigit()):
        raise ValueError(f"{device}/iommu_group points at {name!r}, and a group is a number")
    return int(name)


def _companions(
    devices: str, address: model.PciAddress, present: Collection[str]
) -> tuple[model.PciAddress, ...]:
    """Return the other functions of the card in its slot, but no virtual ones."""
    own = str(address)
    names = (f"{own[:-1]}{number}" for number in _FUNCTIONS)
    return tuple(
        model.PciAddress.parse(name)
        for name in names
        if name != own and name in present and not _is_virtual_function(f"{devices}/{name}")
    )


def _is_virtual_function(device: str) -> bool:
    return sysfs.link(device, "physfn") is not None


def _vanished(device: str, error: Exception) -> bool:
    """Return whether *error* came because the device was unplugged while it was read."""
    is_gone = isinstance(error, OSError) and error.errno == errno.ENODEV
    return is_gone or not os.path.exists(device)


# Discovery runs every minute; each of these is logged once.


@functools.cache
def _report_missing(address: model.PciAddress) -> None:
    LOG.warning("[gpu]addresses names %s, but this host has no GPU there.", address)


@functools.cache
def _report_unknown(key: str) -> None:
    LOG.warning(
        "The architecture of GPU product %s is unknown, so instances whose flavors require an "
        "architecture do not get such a GPU. Set it with [gpu]product = %s architecture=...",
        key,
        key,
    )
