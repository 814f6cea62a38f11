# SPDX-License-Identifier: Apache-2.0
"""The vGPUs that a host has on offer: published to Placement, and drawn from by claims."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Any

from nova_gpu.conf import CONF
from nova_gpu.core import device
from nova_gpu.core.device import Device
from nova_gpu.core.flavor import compare
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.model import GroupKey, PciAddress
from nova_gpu.core.placement import inventory
from nova_gpu.core.scheduling import stats
from nova_gpu.core.vgpu import mig, vgpu_choice
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.core.vgpu.vgpu_group import VGPUGroup
from nova_gpu.core.vgpu.vgpu_room import Room
from nova_gpu.virt.delivery.made_vgpus import MadeVGPUs
from nova_gpu.virt.fabric.fabric import Fabric
from nova_gpu.virt.inventory import provider_tree
from nova_gpu.virt.inventory.pool import Claimant
from nova_gpu.virt.inventory.published import Holding, Published
from nova_gpu.virt.inventory.vgpu_cards import Look, VGPUCards
from nova_gpu.virt.inventory.vgpu_rooms import Rooms, Use
from nova_gpu.virt.usage.ledger import Ledger


class VGPUStock(Published[VGPUGroup, Slot]):
    """The vGPUs of a host

    :param fabric: what joins the cards of which one vGPU is all
    """

    in_parts = True
    noun = "vGPUs"

    def __init__(self, cards: VGPUCards, made: MadeVGPUs, ledger: Ledger, fabric: Fabric) -> None:
        super().__init__(ledger)
        self._cards = cards
        self._made = made
        self._fabric = fabric
        self._rooms = Rooms()

    def __bool__(self) -> bool:
        """Whether this host has any, or had"""
        return bool(self.groups() or self.provider_uuids or self._made.instances())

    def groups(self) -> Mapping[GroupKey, VGPUGroup]:
        return self._cards.look.groups

    # What instances have

    def _parse(self, identifier: str) -> Slot:
        return Slot.parse(identifier)

    def _unavailable(self, group: VGPUGroup, key: Slot) -> str | None:
        card = group.card_of(key)
        if card is None:
            return "no card of this host has it"
        return card.ill or (mig.LOST if card.lacks(key) else None)

    def _given(self, group: VGPUGroup, key: Slot) -> Slot:
        return key

    def mismatch(
        self,
        asked: FlavorRequest,
        held: Collection[Holding[VGPUGroup, Slot]],
        hypervisor_type: str,
        *,
        is_new: bool,
    ) -> str | None:
        reason = compare.vgpu_mismatch(asked, [each.group.facts for each in held])
        if asked.vgpus and reason is None and is_new:
            return compare.other_vgpu_facts(asked.vgpus, [each.group for each in held])
        return reason

    # Publishing

    def _offered(
        self, present: Mapping[GroupKey, str], hypervisor_type: str
    ) -> tuple[Iterable[GroupKey], Callable[[VGPUGroup], provider_tree.Offer]]:
        self._cards.including(self._recorded(present))
        look = self._cards.look
        by_card = self._rooms.of(look.cards.values(), self._use(look))

        def rooms(group: VGPUGroup) -> list[Room]:
            return [by_card[address].rooms[group.facts.id] for address in group.cards]

        def offer(group: VGPUGroup) -> provider_tree.Offer:
            return provider_tree.Offer(
                inventory.inventory_of(rooms(group)),
                lambda present: provider_tree.traits(
                    group.product, hypervisor_type, present, vgpu_type=group.facts
                ),
                self._rooms.slots(group, by_card),
            )

        # Placement takes no inventory of nothing, and a group that carries any is here to stay.
        groups = look.groups.items()
        wanted = [k for k, group in groups if k in present or any(r.total for r in rooms(group))]
        return wanted, offer

    # The pool

    def usable(
        self, provider_uuid: str, addresses: Collection[Device], assigned: Set[Any]
    ) -> frozenset[Device]:
        self._ledger.compare(addresses, assigned)
        group = self.group_of(provider_uuid)
        if group is None:
            return frozenset()
        here = {device.parse(each.identifier) for each in assigned}
        # What the tracker does not count any more, the database may not have said yet.
        usage = self._ledger.now
        taken = usage.taken() | usage.used | (usage.counted() - set(addresses)) | here
        slots = device.slots(taken)
        pending = self._pending(slots, self._cards.look)
        free = {
            slot
            for card in group.cards.values()
            for slot in card.without(taken).free_slots(group.facts.id, slots, pending)
        }
        return frozenset(free & set(addresses))

    def choose(
        self,
        provider_uuid: str,
        free: Collection[Device],
        count: int,
        claimant: Claimant | None = None,
    ) -> tuple[Device, ...]:
        group = self.group_of(provider_uuid)
        by_card: dict[PciAddress, list[Slot]] = {}
        for slot in sorted(device.slots(free)):
            card = group.card_of(slot) if group else None
            by_card.setdefault(card.gpu.address if card else slot.parent, []).append(slot)
        if group and self._fabric.joins(group.cards.keys(), group.facts.id):
            joined = self._fabric.choose(by_card.keys(), count)
            if joined is not None:
                return tuple(by_card[card][0] for card in joined)
        order = vgpu_choice.Order(CONF.gpu.vgpu_order)
        return vgpu_choice.choose(by_card, count, order)

    def divided(self) -> stats.Divided:
        """What the scheduler reads of these cards, by what was read last"""
        look = self._cards.look
        by_card = self._rooms.of(look.cards.values(), self._use(look))
        free: dict[tuple[str, str | None, int | None, int | None], int] = {}
        joined: dict[str, list[PciAddress]] = {}
        with_room = 0
        for address, each in by_card.items():
            with_room += any(room.free for room in each.rooms.values())
            for type_id, room in each.rooms.items():
                facts = each.card.card.types[type_id]
                key = type_id, facts.name, facts.memory_mib, facts.heads
                free[key] = free.get(key, 0) + room.free
                if self._fabric.joins([address], type_id):
                    joined.setdefault(type_id, []).extend([address] * bool(room.free))
        kinds = sorted(free, key=lambda key: key[0])
        sets = tuple(self._sets(joined[key[0]]) if key[0] in joined else () for key in kinds)
        return stats.Divided(
            len(by_card),
            with_room,
            vgpus=tuple((key[0], key[1], free[key]) for key in kinds),
            facts=tuple(key[2:] for key in kinds),
            sets=sets if any(sets) else (),
        )

    def _sets(self, free: Collection[PciAddress]) -> tuple[tuple[int, int], ...]:
        """How many guests of each size could have all of the *free* cards of a partition"""
        room = self._fabric.room(free)
        return tuple((size, room.get(size, 0)) for size in self._fabric.sizes)

    # Who has what

    def _use(self, look: Look) -> Use:
        usage = self._ledger.now
        named = usage.taken()
        taken = device.slots(named | usage.used | usage.counted() | usage.started())
        # What Placement counts for nobody
        kept = usage.strangers().keys() | usage.unjudged().keys() | usage.cleaning
        counted = device.slots((named - kept) | usage.counted() | usage.started())
        return Use(taken, self._pending(taken, look), counted, named)

    def _pending(self, taken: Iterable[Slot], look: Look) -> frozenset[Slot]:
        """The slots of *taken* at which nothing is made yet"""
        made = self._made.instances()
        return frozenset(slot for slot in taken if not look.is_made(slot, made.get(slot)))
