# SPDX-License-Identifier: Apache-2.0
"""The inventory of a host's vGPUs: published to Placement, and the source of claims."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from typing import Any

from nova_gpu.conf import CONF
from nova_gpu.core import device, flavor_mismatch, unavailability
from nova_gpu.core.device import Device
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.model import GroupKey, PciAddress
from nova_gpu.core.placement import inventory
from nova_gpu.core.scheduling import stats
from nova_gpu.core.vgpu import vgpu, vgpu_capacity
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.core.vgpu.vgpu_capacity import CardCapacity
from nova_gpu.core.vgpu.vgpu_group import SharedCard, VGPUGroup
from nova_gpu.virt.card_sets import Sets
from nova_gpu.virt.delivery.made_vgpus import MadeVGPUs
from nova_gpu.virt.inventory import provider_tree
from nova_gpu.virt.inventory.base_inventory import DeviceInventory, Holding
from nova_gpu.virt.inventory.pool import Claimant
from nova_gpu.virt.inventory.vgpu_cards import Inspection, VGPUCards
from nova_gpu.virt.usage.ledger import Ledger

_Slots = frozenset[Slot]


class VGPUInventory(DeviceInventory[VGPUGroup, Slot]):
    """The inventory of the vGPUs of a host."""

    in_parts = True
    noun = "vGPUs"
    _parse = staticmethod(Slot.parse)

    def __init__(
        self,
        cards: VGPUCards,
        made: MadeVGPUs,
        ledger: Ledger,
        sets: Sets,
        unseparated: Callable[[], Mapping[PciAddress, Set[PciAddress]]],
    ) -> None:
        """Create it.

        :param unseparated: return the cards that PCI Express ports do not separate, by card
        """
        super().__init__(ledger)
        self._unseparated = unseparated
        self._cards = cards
        self._made = made
        self._sets = sets
        self._rooms = Rooms()

    def __bool__(self) -> bool:
        """Return whether this host has any vGPUs, or had some."""
        return bool(self.groups() or self.provider_uuids or self.held_slots())

    def groups(self) -> Mapping[GroupKey, VGPUGroup]:
        return self._cards.look.groups

    # Devices of instances

    def held_slots(self) -> frozenset[Slot]:
        """Return the vGPUs that instances or guests of this host have, by any source.

        The sources are the database, starts that the database may not count yet, vGPUs that a guest
        has or had without a cleaning since, and the records of made vGPUs. While the UUIDs of this
        host's providers are unknown, all vGPUs in the records of this host's instances count.
        """
        usage, uuids = self._ledger.now, self.provider_uuids
        recorded = {slot for _, slot in self._recorded(uuids)} if uuids else usage.counted()
        return device.slots(recorded | usage.started() | usage.used) | self._made.instances().keys()

    def _obstacle(self, group: VGPUGroup, key: Slot) -> str | None:
        card = group.card_of(key)
        if card is None:
            return "no card of this host has it"
        reason = unavailability.for_all(card.reasons)
        return str(reason) if reason else vgpu.LOST if card.lacks(key) else None

    def _grant(self, group: VGPUGroup, key: Slot) -> Slot:
        return key

    def mismatch(
        self,
        request: FlavorRequest,
        held: Collection[Holding[VGPUGroup, Slot]],
        hypervisor_type: str,
        *,
        is_new: bool,
    ) -> str | None:
        reason = flavor_mismatch.vgpu_mismatch(request, [holding.group.facts for holding in held])
        if reason is None and is_new:
            groups = [group.group for group in held]
            reason = flavor_mismatch.more_than_a_guest_can_have([group.facts for group in groups])
            if request.vgpus and reason is None:
                return flavor_mismatch.other_vgpu_facts(request.vgpus, groups)
        return reason

    def apart(
        self,
        request: FlavorRequest,
        held: Collection[Holding[VGPUGroup, Slot]],
        hypervisor_type: str,
    ) -> str | None:
        by_group: dict[GroupKey, set[frozenset[PciAddress]]] = {}
        for holding in held:
            card = holding.group.card_of(holding.device)
            joined = card.joined if card else frozenset[PciAddress]()
            by_group.setdefault(holding.group.key, set()).add(joined)
        if all(len(sets) == 1 for sets in by_group.values()):
            return None
        return (
            "an instance's virtual functions are of one set of cards that share memory, and no set "
            "has as many free ones"
        )

    def remote(self, held: Collection[Holding[VGPUGroup, Slot]], claimant: Claimant) -> str | None:
        for group in {holding.group.key: holding.group for holding in held}.values():
            own = [holding.device for holding in held if holding.group.key == group.key]
            cells = claimant.affinity(are_mediated=are_mediated(group))
            nodes = collections.Counter(node_of(group, slot) for slot in own)
            if cells is None or cells.holds(nodes):
                continue
            look = self._cards.look
            rooms = self._rooms.of(look.cards.values(), self._use(look))
            for address, card in group.cards.items():
                nodes[card.gpu.numa_node] += rooms[address].rooms[group.facts.id].free
            return cells.shortage(len(own), nodes)
        return None

    # Publishing

    def _offer(
        self, present: Mapping[GroupKey, str], hypervisor_type: str
    ) -> tuple[Iterable[GroupKey], Callable[[VGPUGroup], provider_tree.ProviderData]]:
        self._cards.including(self._recorded(present))
        look = self._cards.look
        by_card = self._rooms.of(look.cards.values(), self._use(look))

        def rooms(group: VGPUGroup) -> list[CardCapacity]:
            return [by_card[address].rooms[group.facts.id] for address in group.cards]

        def offer(group: VGPUGroup) -> provider_tree.ProviderData:
            return provider_tree.ProviderData(
                inventory.inventory_of(rooms(group), most=_most_of_guest(group, by_card)),
                lambda present: (
                    provider_tree.traits(
                        group.product, hypervisor_type, present, vgpu_type=group.facts
                    )
                    | self._set_traits(group, by_card)
                ),
                self._rooms.slots(group, by_card),
            )

        # Placement refuses an inventory with a total of 0; a group that is in the tree stays there.
        groups = look.groups.items()
        wanted = [k for k, group in groups if k in present or any(r.total for r in rooms(group))]
        return wanted, offer

    def _set_traits(
        self, group: VGPUGroup, by_card: Mapping[PciAddress, CardRooms]
    ) -> frozenset[str]:
        free = [a for a in group.cards if by_card[a].rooms[group.facts.id].free]
        sets = self._sets.offered(group.cards.keys(), free, group.facts.id)
        return sets.traits() if sets else frozenset()

    # The pool

    def usable(
        self, provider_uuid: str, addresses: Collection[Device], assigned: Set[Any]
    ) -> frozenset[Device]:
        self._ledger.compare(addresses, assigned)
        group = self.group_of(provider_uuid)
        if group is None:
            return frozenset()
        here = {device.parse(resource.identifier) for resource in assigned}
        # The database may still count devices that the tracker has released.
        usage = self._ledger.now
        taken = usage.taken() | usage.used | (usage.counted() - set(addresses)) | here
        taken |= self._beside(taken | usage.counted() | usage.started())
        slots = device.slots(taken)
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
        by_card = _by_card(device.slots(free), group)
        if group and self._sets.offered(group.cards.keys(), (), group.facts.id):
            joined = self._sets.choose(by_card.keys(), count)
            if joined is not None:
                return tuple(by_card[card][0] for card in joined)
        order = vgpu_capacity.Order(CONF.gpu.vgpu_order)
        return vgpu_capacity.choose(_in_one_set(by_card, group, count), count, order)

    def distances(
        self, provider_uuid: str, devices: Collection[Device], claimant: Claimant
    ) -> Mapping[Device, int]:
        group = self.group_of(provider_uuid)
        cells = claimant.affinity(are_mediated=bool(group and are_mediated(group)))
        return {
            slot: cells.distance(node_of(group, slot)) if group and cells else 0
            for slot in device.slots(devices)
        }

    def improve(
        self,
        provider_uuid: str,
        own: Collection[Device],
        free: Collection[Device],
        claimant: Claimant,
    ) -> Collection[Device]:
        group = self.group_of(provider_uuid)
        distance = self.distances(provider_uuid, free, claimant)
        best, least = own, sum(distance[dev] for dev in own)
        for part in _sets(device.slots(free), group):
            for farthest in sorted({distance[slot] for slot in part}):
                near = [slot for slot in part if distance[slot] <= farthest]
                if len(near) >= len(own) and self._are_one_set(group, near, len(own)):
                    chosen = self.choose(provider_uuid, near, len(own))
                    total = sum(distance[slot] for slot in chosen)
                    best, least = (chosen, total) if total < least else (best, least)
        return best

    def _are_one_set(self, group: VGPUGroup | None, slots: Collection[Slot], count: int) -> bool:
        """Return whether a guest can have *count* of *slots* on a board that is given in sets."""
        if group is None or not self._sets.offered(group.cards.keys(), (), group.facts.id):
            return True
        cards = {card.gpu.address for slot in slots if (card := group.card_of(slot))}
        return self._sets.choose(cards, count) is not None

    def divided(self) -> stats.Divided:
        """Return the scheduler's report on the cards that are offered as vGPUs."""
        look = self._cards.look
        by_card = self._rooms.of(look.cards.values(), self._use(look))
        free: dict[tuple[str, str | None, int | None, int | None], int] = {}
        joined: dict[str, dict[PciAddress, bool]] = {}
        with_room = 0
        for address, item in by_card.items():
            with_room += any(room.free for room in item.rooms.values())
            for type_id, room in item.rooms.items():
                facts = item.card.card.types[type_id]
                key = type_id, facts.name, facts.memory_mib, facts.heads
                free[key] = free.get(key, 0) + room.free
                joined.setdefault(type_id, {})[address] = bool(room.free)
        kinds = sorted(free, key=lambda key: key[0])
        sets = tuple(self._rooms_of_sets(key[0], joined[key[0]]) for key in kinds)
        return stats.Divided(
            len(by_card),
            with_room,
            vgpus=tuple((key[0], key[1], free[key]) for key in kinds),
            facts=tuple(key[2:] for key in kinds),
            sets=sets if any(sets) else (),
        )

    def _rooms_of_sets(
        self, vgpu_type: str, is_free: Mapping[PciAddress, bool]
    ) -> tuple[tuple[int, int], ...]:
        """Return each size of a board's sets, with the number of guests that could get such a set.

        A guest gets one vGPU of the type on each card of the set. The result is empty if guests can
        get any combination of the cards.

        :param is_free: whether the card has room for a vGPU of the type
        """
        cards = [card for card in is_free if self._sets.offered([card], (), vgpu_type)]
        sets = self._sets.offered(cards, [card for card in cards if is_free[card]], vgpu_type)
        if sets is None:
            return ()
        room = sets.room()
        return tuple((size, room.get(size, 0)) for size in sets.sizes)

    # Use of vGPUs

    def _use(self, look: Inspection) -> Use:
        usage = self._ledger.now
        named = usage.taken()
        taken = device.slots(named | usage.used | usage.counted() | usage.started())
        # Devices that no allocation in Placement covers
        withheld_cards = usage.strangers().keys() | usage.unjudged().keys() | usage.cleaning
        counted = device.slots((named - withheld_cards) | usage.counted() | usage.started())
        counted -= usage.uncovered()
        # A card that a guest had whole, and is not clean yet, has no vGPU to give either.
        busy = named | usage.used
        busy |= self._beside(busy | usage.counted() | usage.started())
        return Use(taken, self._pending(taken, look), counted, busy)

    def _beside(self, devices: Collection[Device]) -> frozenset[PciAddress]:
        """Return the cards whose memory a guest that has one of *devices* may reach.

        Their parts are for that guest only.
        """
        functions = {device.function(item) for item in devices}
        cards = self._cards.look.cards
        linked = {
            address
            for card in cards.values()
            if functions & (card.joined | card.card.parents.keys())
            for address in card.joined
        }
        used = functions.union(
            a for a, card in cards.items() if functions & card.card.parents.keys()
        )
        # The functions of one card do not reach each other over the port above it. Mediated devices
        # of a card reach no other; a guest that has a function or a card there may reach theirs.
        mediated = {a for a, card in cards.items() if _is_mediated(card)}
        unseparated = {
            peer
            for address, peers in self._unseparated().items()
            if address in used
            for peer in peers - {address}
            if not mediated >= {address, peer}
        }
        return frozenset(linked | unseparated)

    def _pending(self, taken: Iterable[Slot], look: Inspection) -> frozenset[Slot]:
        """Return those slots of *taken* whose vGPU does not exist on the host yet."""
        made = self._made.instances()
        return frozenset(slot for slot in taken if not look.is_made(slot, made.get(slot)))


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """The used vGPUs of a host, from which the room for further ones is computed.

    ``taken`` are the slots that instances have or are promised, ``pending`` those of them at which
    no vGPU exists yet, and ``counted`` the slots that allocations in Placement cover. ``named`` are
    the vGPUs, PCI functions and whole cards that are claimed, starting, in a domain, moving, being
    cleaned, or to be cleaned.
    """

    taken: _Slots
    pending: _Slots
    counted: _Slots
    named: frozenset[Device]

    def of(self, card: SharedCard) -> Use:
        """Return the part of this use that concerns *card*."""
        functions = card.card.parents.keys()
        own = {part for part in self.named if card.has(part) or part == card.gpu.address}
        taken, pending, counted = (
            frozenset(slot for slot in slots if slot.parent in functions)
            for slots in (self.taken, self.pending, self.counted)
        )
        return Use(taken, pending, counted, frozenset(own))


@dataclasses.dataclass(frozen=True, slots=True)
class CardRooms:
    """The room of one card for vGPUs, by type id, with the card and use that it was computed for.

    ``rooms`` is the room as Placement counts it. ``possible`` are the most vGPUs of the type that
    the card carries, as :func:`_most_slots` returns it, and the slots that these can have.
    ``slots`` are the same slots, and slots in use that are no longer possible.
    """

    card: SharedCard
    use: Use
    rooms: Mapping[str, CardCapacity]
    slots: Mapping[str, _Slots]
    possible: Mapping[str, tuple[int, _Slots]]


class Rooms:
    """A cache of the room of each card of a host for vGPUs; a changed card is computed again."""

    def __init__(self) -> None:
        self._by_card: Mapping[PciAddress, CardRooms] = {}
        self._slots: dict[GroupKey, tuple[list[_Slots], _Slots]] = {}

    def of(self, cards: Iterable[SharedCard], use: Use) -> Mapping[PciAddress, CardRooms]:
        """Return the room of each of *cards* for vGPUs, by address."""
        before = self._by_card
        rooms = {card.gpu.address: _of(card, use, before.get(card.gpu.address)) for card in cards}
        self._by_card = rooms
        return rooms

    def slots(self, group: VGPUGroup, by_card: Mapping[PciAddress, CardRooms]) -> _Slots:
        """Return the slots of all cards of *group*, the same object as long as nothing changes."""
        parts = [by_card[address].slots[group.facts.id] for address in group.cards]
        before = self._slots.get(group.key)
        if before is None or before[0] != parts:
            before = self._slots[group.key] = parts, frozenset[Slot]().union(*parts)
        return before[1]


def _of(card: SharedCard, use: Use, before: CardRooms | None) -> CardRooms:
    own = use.of(card)
    if before is not None and before.card is not card:
        before = None
    if before is not None and before.use == own:
        return before
    left = card.without(own.named)
    rooms, slots, possible = {}, {}, {}
    for type_id in card.card.types:
        rooms[type_id] = _room(left, type_id, own)
        total = _most_slots(card, type_id, own.taken)
        known = before.possible[type_id] if before is not None else None
        if known is None or known[0] != total:
            known = total, frozenset(card.slots(type_id, total))
        possible[type_id] = known
        # Include the slots in use even if the card has fewer functions now.
        there = {slot for slot in own.taken if slot.type_id == type_id}
        slots[type_id] = known[1] if there <= known[1] else known[1] | there
    return CardRooms(card, own, rooms, slots, possible)


def _room(card: SharedCard, type_id: str, use: Use) -> CardCapacity:
    """Return the card's room for vGPUs of the type, as Placement counts it.

    vGPUs that are in use without an allocation in Placement count as reserved.
    """
    room = card.room(type_id, use.taken, use.pending)
    own = sum(slot.type_id == type_id for slot in use.counted)
    return CardCapacity(max(room.total, own), own, room.free)


def _most_of_guest(group: VGPUGroup, by_card: Mapping[PciAddress, CardRooms]) -> int | None:
    """Return how many vGPUs of a group one guest can have, ``None`` if all of them.

    They may not be more than the largest set of joined cards has.
    """
    sets: collections.Counter[frozenset[PciAddress]] = collections.Counter()
    for address, card in group.cards.items():
        sets[card.joined] += by_card[address].rooms[group.facts.id].total
    if frozenset() in sets:
        return group.facts.per_guest
    largest = max(sets.values())
    return min(largest, group.facts.per_guest or largest)


def _by_card(slots: Iterable[Slot], group: VGPUGroup | None) -> dict[PciAddress, list[Slot]]:
    by_card: dict[PciAddress, list[Slot]] = {}
    for slot in sorted(slots):
        card = group.card_of(slot) if group else None
        by_card.setdefault(card.gpu.address if card else slot.parent, []).append(slot)
    return by_card


def _joined(address: PciAddress, group: VGPUGroup | None) -> frozenset[PciAddress]:
    card = group.cards.get(address) if group else None
    return card.joined if card else frozenset()


def _sets(slots: Iterable[Slot], group: VGPUGroup | None) -> Iterable[list[Slot]]:
    """Return the *slots* of each set of joined cards, and those of all other cards."""
    sets: dict[frozenset[PciAddress], list[Slot]] = {}
    for address, own in _by_card(slots, group).items():
        sets.setdefault(_joined(address, group), []).extend(own)
    return sets.values()


def _in_one_set(
    free: Mapping[PciAddress, list[Slot]], group: VGPUGroup | None, count: int
) -> Mapping[PciAddress, list[Slot]]:
    """Return those of the *free* slots, by card, that a guest with *count* of them is chosen from.

    They are those of the smallest set of joined cards that has enough, or all if none has.
    """
    sets: dict[frozenset[PciAddress], dict[PciAddress, list[Slot]]] = {}
    for address, slots in free.items():
        sets.setdefault(_joined(address, group), {})[address] = slots
    sizes = {joined: sum(map(len, slots.values())) for joined, slots in sets.items()}
    enough = [joined for joined, size in sizes.items() if size >= count]
    return sets[min(enough, key=lambda joined: (sizes[joined], sorted(joined)))] if enough else free


def node_of(group: VGPUGroup, slot: Slot) -> int | None:
    """Return the NUMA node of the slot's card, ``None`` if it is unknown."""
    card = group.card_of(slot)
    return card.gpu.numa_node if card else None


def are_mediated(group: VGPUGroup) -> bool:
    """Return whether guests get mediated devices of the group, and no PCI function of a card."""
    parents = (parent for card in group.cards.values() for parent in card.card.parents.values())
    return all(parent.kind.is_mediated for parent in parents)


def _is_mediated(card: SharedCard) -> bool:
    """Return whether guests get no PCI function of the card, but what its driver mediates."""
    parents = card.card.parents
    return parents.keys() == {card.gpu.address} and all(
        parent.kind.is_mediated for parent in parents.values()
    )


def _most_slots(card: SharedCard, type_id: str, taken: Collection[Slot]) -> int:
    """Return the most vGPUs of the type that a card with a single PCI function carries.

    Return 0 for a card with several functions, because each reports its own number of slots.
    """
    return 0 if len(card.card.parents) > 1 else card.room(type_id, taken, ()).total
