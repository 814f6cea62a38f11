# SPDX-License-Identifier: Apache-2.0
"""The facts about cards, and ``nova-gpu topology`` for machines without libvirt, such as guests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import prettytable

from nova_gpu.cmd.output import NO_CARDS, Format, print_json
from nova_gpu.conf import CONF
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.topology import nearness
from nova_gpu.host import products
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.pci import direct_links, discovery, selection
from nova_gpu.host.roots import Roots

_NO_HOST = (
    "The Python module libvirt is not installed: instances are not shown, only the places of GPUs."
)


def run(command: Any, _: list[str]) -> int:
    """Run ``nova-gpu topology`` on a machine without Python's module libvirt; return 0."""
    gpus = find(lambda: nvml.query(CONF.gpu.nvml_timeout) if CONF.gpu.nvml else {})
    if command.format == Format.JSON:
        print_json([facts(gpu) for gpu in gpus])
    elif gpus:
        print("\n".join([*tree(gpus, {}), _NO_HOST, *matrix(gpus)]))
    else:
        print(NO_CARDS)
    return 0


def find(facts: Callable[[], Mapping[PciAddress, nvml.NvmlFacts]] = dict) -> tuple[GPU, ...]:
    """Return the cards of this machine that the options select.

    :param facts: return NVML's facts about cards by address; by default NVML is not queried
    :raises DiscoveryFailed: if the cards cannot be listed
    :raises InvalidOption: if an option is invalid
    """
    vendors, addresses, product_ids = CONF.gpu.vendors, CONF.gpu.addresses, CONF.gpu.product_ids
    gpus = discovery.discover(
        Roots.of(CONF.gpu),
        selection.Selection.parse(vendors, addresses, product_ids),
        products.parse_overrides(CONF.gpu.product),
        facts,
    )
    return direct_links.with_links(gpus, direct_links.parse(CONF.gpu.link_groups))


def facts(gpu: GPU) -> dict[str, Any]:
    """Return the facts about one card as values for JSON; unknown values are ``None``."""
    return {
        "address": str(gpu.address),
        "product_id": gpu.product.key,
        "subsystem": gpu.subsystem,
        "name": gpu.product.name,
        "architecture": gpu.product.architecture,
        "memory_mib": gpu.product.memory_mib,
        "uuid": gpu.uuid,
        "numa_node": gpu.numa_node,
        "iommu_group": gpu.iommu_group,
        "pci_root": gpu.pci_root,
        "pcie_switch": str(gpu.pcie_switch) if gpu.pcie_switch else None,
        "driver": gpu.driver,
        "companions": [str(address) for address in gpu.companions],
        "links": [
            {"peer": str(link.peer), "type": str(link.type), "width": link.width}
            for link in gpu.links
        ],
    }


def tree(gpus: Sequence[GPU], whose: Mapping[PciAddress, str]) -> Iterator[str]:
    """Yield the lines of a tree: NUMA nodes, PCI roots, switches and the cards at them.

    :param whose: the text to add to the line of a card, such as its instance
    """

    def path(gpu: GPU) -> tuple[str, str, str]:
        node = "NUMA node not known" if gpu.numa_node is None else f"NUMA node {gpu.numa_node}"
        switch = f"switch {gpu.pcie_switch}" if gpu.pcie_switch else ""
        return node, gpu.pci_root or "PCI root not known", switch

    name = max(len(gpu.product.name or gpu.product.key) for gpu in gpus)
    before: tuple[str, ...] = ()
    for where, here in itertools.groupby(sorted(gpus, key=path), key=path):
        for depth, part in enumerate(where):
            if part and where[: depth + 1] != before[: depth + 1]:
                yield f"{'  ' * depth}{part}"
        before = where
        indent = "  " * (3 if where[2] else 2)
        for gpu in here:
            label = (gpu.product.name or gpu.product.key).ljust(name)
            who = whose.get(gpu.address, "")
            yield f"{indent}GPU{gpus.index(gpu)}  {gpu.address}  {label}  {who}".rstrip()


def matrix(gpus: Sequence[GPU]) -> Iterator[str]:
    """Yield the lines of a table with the path or link between each two cards, and its legend."""
    if len(gpus) < 2:
        return
    labels = [f"GPU{number}" for number in range(len(gpus))]
    shown = prettytable.PrettyTable(["", *labels], border=False, align="l")
    for label, one in zip(labels, gpus, strict=True):
        row = ["X" if one is other else nearness.between(one, other) for other in gpus]
        shown.add_row([label, *row])
    text = shown.get_string()
    yield ""
    yield from (line.rstrip() for line in text.splitlines())
    legend = {key: what for key, what in nearness.LEGEND.items() if key.rstrip("#") in text}
    yield ""
    yield "; ".join(f"{key}: {what}" for key, what in legend.items())
