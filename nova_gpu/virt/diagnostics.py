# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a guest in the answer to ``GET /servers/{id}/diagnostics`` before microversion 2.48.

From that microversion on Nova's answer has fixed fields, and none for GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oslo_log import log as logging

from nova_gpu.core import device, exception, names, unavailability
from nova_gpu.core.card_sets import Module
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Reasons
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host.roots import Roots
from nova_gpu.virt.inventory.assignment import InstanceDevices
from nova_gpu.virt.inventory.card_groups import CardGroups
from nova_gpu.virt.inventory.vgpu_cards import VGPUCards
from nova_gpu.virt.usage import domains

LOG = logging.getLogger(__name__)


def gpus(
    guest: Any,
    assigned: InstanceDevices,
    shared: VGPUCards,
    roots: Roots,
    modules: Mapping[PciAddress, Module],
) -> dict[str, Any]:
    """Return facts of the guest's GPUs, such as ``gpu0_name``, to be added to Nova's diagnostics.

    The GPUs are numbered from 0: whole cards by address, then vGPUs by slot.

    :param modules: the number of each card's place on a board that gives exact sets of cards
    :returns: an empty map if the guest's XML cannot be read: Nova's own fields are then shown alone
    """
    if not assigned:
        return {}
    offer, cards = assigned.card_inventory.groups(), shared.look.cards.values()
    parts = domains.parts(assigned.card_inventory.cards(), roots, [card.card for card in cards])
    try:
        domain = domains.named_in(guest.get_xml_desc(), parts)
    except exception.DomainsUnreadable as error:
        LOG.warning("Cannot add the guest's GPUs to its diagnostics: %s", error)
        return {}
    cards_by_address = {}
    named, cells = domain.every, ", ".join(map(str, sorted(domain.cells)))
    devices = [
        *((str(card), _of_card(offer, card)) for card in sorted(device.cards(named))),
        *((str(slot), _of_vgpu(cards, slot)) for slot in sorted(device.slots(named))),
    ]
    for index, (address, card) in enumerate(devices):
        facts = {"address": address, **(_facts(*card, modules) if card else {})}
        facts |= {"cells": cells} if cells else {}
        cards_by_address.update({names.DIAGNOSTIC.format(index, key): facts[key] for key in facts})
    return cards_by_address


def _of_card(offer: CardGroups, address: PciAddress) -> tuple[GPU, Reasons] | None:
    for group in offer.values():
        if gpu := group.gpus.get(address):
            return gpu, group.unavailable.get(address, ())
    return None


def _of_vgpu(cards: Iterable[SharedCard], slot: Slot) -> tuple[GPU, Reasons] | None:
    return next(((card.gpu, card.reasons) for card in cards if card.has(slot)), None)


def _facts(gpu: GPU, reasons: Reasons, modules: Mapping[PciAddress, Module]) -> dict[str, Any]:
    facts = {
        "product": gpu.product.key,
        "name": gpu.product.name,
        "numa_node": gpu.numa_node,
        "trouble": unavailability.text(reasons),
    }
    return facts | ({"module": modules[gpu.address]} if gpu.address in modules else {})
