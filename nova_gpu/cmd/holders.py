# SPDX-License-Identifier: Apache-2.0
"""The guests that have each card, as libvirt's domains tell."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from nova_gpu.cmd import this_host, waiting
from nova_gpu.core import device, exception
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu.vgpu import DividedCard
from nova_gpu.virt.delivery.made_vgpus import MadeVGPUs
from nova_gpu.virt.inventory.discovery import Discovery
from nova_gpu.virt.usage import domains
from nova_gpu.virt.usage.domains import DomainDevices

# The time that an operator waits for a libvirt that does not answer.
_DEADLINE_S = 10.0

# The NUMA nodes of the host that a running guest's cells are on, by the guest's uuid
NodesByGuest = Mapping[str, Collection[int]]


def read(
    discovery: Discovery, gpus: Iterable[GPU]
) -> tuple[Mapping[PciAddress, tuple[str, ...]], NodesByGuest, str | None]:
    """Return the uuids of the domains, running or not, that have each card, by card.

    The second value has the cells of those with cells, the third is why the domains are unknown,
    ``None`` if libvirt answered.
    """
    named, unknown = by_domain(discovery, gpus, (), _DEADLINE_S)
    return by_card(named), cells(named), unknown


def cells(named: Mapping[str, DomainDevices]) -> NodesByGuest:
    return {uuid: sorted(has.cells) for uuid, has in named.items() if has.cells}


def text(uuid: str, cells: NodesByGuest) -> str:
    """Return the text for the domain *uuid* next to its card, with the nodes of its cells."""
    if not (nodes := cells.get(uuid)):
        return uuid
    return f"{uuid}, cells on NUMA {', '.join(map(str, nodes))}"


def remote(
    gpus: Iterable[GPU], named: Mapping[str, DomainDevices]
) -> Mapping[PciAddress, tuple[str, ...]]:
    """Return the uuids of the running guests with cells on other nodes than a card of theirs only.

    They are by card. A card whose NUMA node is unknown counts as near.
    """
    node = {gpu.address: gpu.numa_node for gpu in gpus}
    guests: dict[PciAddress, tuple[str, ...]] = {}
    for uuid, has in sorted(named.items()):
        for card in set(map(device.function, has.own)) if has.cells else ():
            if node.get(card) is not None and node[card] not in has.cells:
                guests[card] = (*guests.get(card, ()), uuid)
    return guests


def by_domain(
    discovery: Discovery,
    whole: Iterable[GPU],
    divided: Iterable[DividedCard],
    deadline_s: float,
) -> tuple[Mapping[str, DomainDevices], str | None]:
    """Return the devices of each domain by its uuid, and why they are unknown, or ``None``."""
    made_vgpus = MadeVGPUs(discovery.vgpus).by_instance()
    parts = domains.parts(whole, discovery.roots, divided, vgpus=made_vgpus)
    try:
        with waiting.shown("asking libvirt"):
            ask = waiting.within(deadline_s)
            return ask(lambda: domains.look(this_host.Reader(), parts)), None
    except exception.DomainsUnreadable as error:
        return {}, error.fact
    except TimeoutError as error:
        return {}, f"libvirt: {error}"


def by_card(named: Mapping[str, DomainDevices]) -> Mapping[PciAddress, tuple[str, ...]]:
    """Return the uuids of the domains that have each card or a part of it, by card."""
    held: dict[PciAddress, tuple[str, ...]] = {}
    for uuid, has in sorted(named.items()):
        # An instance with several parts of a card is listed once.
        for card in set(map(device.function, has.every)):
            held[card] = (*held.get(card, ()), uuid)
    return held
