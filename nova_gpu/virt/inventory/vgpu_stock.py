# SPDX-License-Identifier: Apache-2.0
"""The vGPUs that a host has on offer: published to Placement, and drawn from by claims."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from typing import Any

from nova.compute import provider_tree as nova_provider_tree

from nova_gpu.conf import CONF
from nova_gpu.core import device, names
from nova_gpu.core.device import Device
from nova_gpu.core.model import GroupKey, PciAddress
from nova_gpu.core.scheduling import stats
from nova_gpu.core.vgpu import vgpu_choice
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.core.vgpu.vgpu_group import VGPUGroup
from nova_gpu.virt.delivery.made_vgpus import MadeVGPUs
from nova_gpu.virt.inventory import provider_tree
from nova_gpu.virt.inventory.vgpu_cards import Look, VGPUCards
from nova_gpu.virt.inventory.vgpu_rooms import Rooms, Use
from nova_gpu.virt.usage.ledger import Ledger


class VGPUStock:
    """The :class:`nova_gpu.virt.inventory.pool.Supply` behind the groups of vGPUs.

    As :class:`nova_gpu.virt.inventory.stock.Stock` it looks at nothing: a claim never waits for it.
    """

    def __init__(self, cards: VGPUCards, made: MadeVGPUs, occupancy: Ledger) -> None:
        self._cards = cards
        self._made = made
        self._occupancy = occupancy
        self._rooms = Rooms()
        self.provider_uuids: dict[GroupKey, str] = {}

    def group_of(self, provider_uuid: str) -> VGPUGroup | None:
        """The group that a provider stands for, ``None`` where it is not known as one of ours."""
        keys = {uuid: key for key, uuid in self.provider_uuids.items()}
        key = keys.get(provider_uuid)
        return None if key is None else self._cards.look.groups.get(key)

    # Publishing

    def publish(
        self, tree: nova_provider_tree.ProviderTree, nodename: str, hypervisor_type: str
    ) -> None:
        """Writes the groups into the tree, from what is known. Runs inside every claim."""
        present = provider_tree.vgpu_groups_in(tree, nodename)
        if not self._cards.look.groups and not present:
            return
        recorded = self._occupancy.now.recorded({uuid: key for key, uuid in present.items()})
        self._cards.including(recorded)
        look = self._cards.look
        by_card = self._rooms.of(look.cards.values(), self._use(look))
        groups = look.groups
        rooms = {
            key: [by_card[address].rooms[group.facts.id] for address in group.cards]
            for key, group in groups.items()
        }
        # Placement takes no inventory of nothing, and a group that carries any is here to stay.
        wanted = [key for key in groups if key in present or any(r.total for r in rooms[key])]
        self.provider_uuids = provider_tree.ensure_vgpus(tree, nodename, wanted)
        for key, uuid in self.provider_uuids.items():
            group = groups.get(key)
            if group is None:
                provider_tree.withdraw(tree, uuid, self, names.VGPU_RESOURCE_CLASS)
                continue
            slots = self._rooms.slots(group, by_card)
            provider_tree.publish_vgpus(tree, uuid, group, rooms[key], slots, hypervisor_type, self)

    # The pool

    def usable(
        self, provider_uuid: str, addresses: Collection[Device], assigned: Set[Any]
    ) -> frozenset[Device]:
        self._occupancy.compare(addresses, assigned)
        group = self.group_of(provider_uuid)
        if group is None:
            return frozenset()
        here = {device.parse(each.identifier) for each in assigned}
        # What the tracker does not count any more, the database may not have said yet.
        usage = self._occupancy.now
        taken = usage.taken() | usage.used | (usage.counted() - set(addresses)) | here
        slots = frozenset(each for each in taken if isinstance(each, Slot))
        pending = self._pending(slots, self._cards.look)
        free = {
            slot
            for card in group.cards.values()
            for slot in card.without(taken).free_slots(group.facts.id, slots, pending)
        }
        return frozenset(free & set(addresses))

    def choose(
        self, provider_uuid: str, free: Collection[Device], count: int
    ) -> tuple[Device, ...]:
        group = self.group_of(provider_uuid)
        by_card: dict[PciAddress, list[Slot]] = {}
        for slot in sorted(each for each in free if isinstance(each, Slot)):
            card = group.card_of(slot) if group else None
            by_card.setdefault(card.gpu.address if card else slot.parent, []).append(slot)
        order = vgpu_choice.Order(CONF.gpu.vgpu_order)
        return vgpu_choice.choose(by_card, count, order)

    def hand_out(
        self, addresses: Collection[Device], back: Collection[Device], assigned: Set[Any]
    ) -> None:
        timeout_s = CONF.gpu.handed_out_timeout
        self._occupancy.claim(addresses, back, assigned, timeout_s)

    def divided(self) -> stats.Divided:
        """What the scheduler reads of these cards, by what was read last"""
        look = self._cards.look
        by_card = self._rooms.of(look.cards.values(), self._use(look))
        free: dict[tuple[str, str | None, int | None, int | None], int] = {}
        with_room = 0
        for each in by_card.values():
            with_room += any(room.free for room in each.rooms.values())
            for type_id, room in each.rooms.items():
                facts = each.card.card.types[type_id]
                key = type_id, facts.name, facts.memory_mib, facts.heads
                free[key] = free.get(key, 0) + room.free
        kinds = sorted(free, key=lambda key: key[0])
        return stats.Divided(
            len(by_card),
            with_room,
            vgpus=tuple((key[0], key[1], free[key]) for key in kinds),
            facts=tuple(key[2:] for key in kinds),
        )

    # Who has what

    def _use(self, look: Look) -> Use:
        usage = self._occupancy.now
        named = usage.taken()
        taken = _slots_of(named | usage.used | usage.counted() | usage.started())
        # What Placement counts for nobody
        kept = usage.strangers().keys() | usage.unjudged().keys() | usage.cleaning
        counted = _slots_of((named - kept) | usage.counted() | usage.started())
        return Use(taken, self._pending(taken, look), counted, named)

    def _pending(self, taken: Iterable[Slot], look: Look) -> frozenset[Slot]:
        """The slots of *taken* at which nothing is made yet"""
        made = self._made.instances()
        return frozenset(slot for slot in taken if not look.is_made(slot, made.get(slot)))


def _slots_of(devices: Mapping[Any, Any] | Collection[Device]) -> frozenset[Slot]:
    return frozenset(each for each in devices if isinstance(each, Slot))
