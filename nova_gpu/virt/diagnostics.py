# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a guest in the answer to ``GET /servers/{id}/diagnostics`` before microversion 2.48.

From that microversion on Nova's answer has fixed fields, and none for GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from oslo_log import log as logging

from nova_gpu.core import availability, device, exception, names
from nova_gpu.core.model import PciAddress
from nova_gpu.core.sets.partitions import Module
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host.roots import Roots
from nova_gpu.virt.inventory.assignment import Assigned
from nova_gpu.virt.inventory.card_groups import CardGroups
from nova_gpu.virt.inventory.vgpu_cards import VGPUCards
from nova_gpu.virt.usage import domains

LOG = logging.getLogger(__name__)


def gpus(
    guest: Any,
    assigned: Assigned,
    shared: VGPUCards,
    roots: Roots,
    modules: Mapping[PciAddress, Module],
) -> dict[str, Any]:
    """Return facts of the guest's GPUs, such as ``gpu0_name``, to be added to Nova's diagnostics.

    The GPUs are numbered from 0: whole cards by address, then vGPUs by slot.

    :param guest: a nova.virt.libvirt.guest.Guest
    :param shared: the cards that are divided into vGPUs
    :param modules: the number of each card's module on a board with NVSwitches
    :returns: an empty map if the guest's XML cannot be read: Nova's own fields are then shown alone
    """
    if not assigned:
        return {}
    offer, cards = assigned.whole.groups(), shared.look.cards.values()
    parts = domains.parts(assigned.whole.cards(), roots, [card.card for card in cards])
    try:
        named = domains.gpus_in(guest.get_xml_desc(), parts)
    except exception.DomainsUnreadable as error:
        LOG.warning("Cannot add the guest's GPUs to its diagnostics: %s", error)
        return {}
    cards_by_address = {}
    devices = [
        *((str(card), _facts(offer, card, modules)) for card in sorted(device.cards(named))),
        *(
            (str(slot), _facts_of_vgpu(cards, slot, modules))
            for slot in sorted(device.slots(named))
        ),
    ]
    for index, (address, own) in enumerate(devices):
        facts = {"address": address, **dict(own)}
        cards_by_address.update({names.DIAGNOSTIC.format(index, key): facts[key] for key in facts})
    return cards_by_address


def _facts(
    offer: CardGroups, address: PciAddress, modules: Mapping[PciAddress, Module]
) -> Iterator[tuple[str, Any]]:
    """Yield the facts of a whole card as names and values; nothing if no group has the card."""
    for group in offer.values():
        if gpu := group.gpus.get(address):
            yield "product", gpu.product.key
            yield "name", gpu.product.name
            yield "numa_node", gpu.numa_node
            yield "trouble", availability.text(group.unavailable.get(address, ()))
            if address in modules:
                yield "module", modules[address]


def _facts_of_vgpu(
    cards: Iterable[SharedCard], slot: Slot, modules: Mapping[PciAddress, Module]
) -> Iterator[tuple[str, Any]]:
    """Yield the facts of the vGPU's card as names and values; nothing if the card is gone."""
    for card in cards:
        if card.has(slot):
            yield "product", card.gpu.product.key
            yield "name", card.gpu.product.name
            yield "numa_node", card.gpu.numa_node
            yield "trouble", availability.text(card.reasons)
            if card.gpu.address in modules:
                yield "module", modules[card.gpu.address]
