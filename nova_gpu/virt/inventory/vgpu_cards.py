# SPDX-License-Identifier: Apache-2.0
"""The cards of a host that are offered in parts, as vGPUs, and what the last inspection found."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from oslo_log import log as logging

from nova_gpu.core import device, unavailability
from nova_gpu.core.device import Device, slots
from nova_gpu.core.model import GPU, GroupKey, PciAddress, Product
from nova_gpu.core.unavailability import Reasons, Scope, Source, Unavailable
from nova_gpu.core.vgpu.vgpu import (
    UNKNOWN,
    DividedCard,
    Parent,
    Slot,
    VGPUKind,
    VGPUType,
    device_uuid,
)
from nova_gpu.core.vgpu.vgpu_group import SharedCard, VGPUGroup, groups
from nova_gpu.host.roots import Roots
from nova_gpu.host.vgpu import division, mdev
from nova_gpu.virt.delivery.deliveries import Deliveries
from nova_gpu.virt.inventory import card_groups, discovery

LOG = logging.getLogger(__name__)

_IN_PARTS = Unavailable("it is given in parts, as vGPUs", "", Source.DIVISION, Scope.ALL)
_NOT_JUDGED = Unavailable("nova-compute has not finished looking at it", "", Source.SERVICE)
_NOT_DIVIDED = Unavailable(
    "its driver makes no vGPUs of it any more", "", Source.DIVISION, Scope.ALL
)


@dataclasses.dataclass(frozen=True, slots=True)
class Inspection:
    """The result of one inspection of the cards that are offered as vGPUs.

    ``cards`` are these cards by address, ``groups`` their vGPU groups, and ``there`` the UUIDs of
    all mediated devices that exist on the host.
    """

    cards: Mapping[PciAddress, SharedCard] = dataclasses.field(default_factory=dict)
    groups: Mapping[GroupKey, VGPUGroup] = dataclasses.field(default_factory=dict)
    there: frozenset[str] = frozenset()

    def has(self, address: PciAddress) -> bool:
        return address in self.cards

    def kind(self, slot: Slot) -> VGPUKind:
        """Return the form of the vGPU at *slot*; a mediated device if the slot is unknown."""
        return self._parent(slot).kind

    def is_made(self, slot: Slot, instance_uuid: str | None) -> bool:
        """Return whether the vGPU at *slot* exists on the host.

        The result is ``False`` for a plain virtual function, which nova-gpu does not make.

        :param instance_uuid: the instance that has the vGPU; without it, a mediated device counts
            as not made, because its UUID follows from that of the instance
        """
        parent = self._parent(slot)
        if not parent.kind.is_mediated:
            return parent.is_made(slot)
        return instance_uuid is not None and device_uuid(instance_uuid, slot) in self.there

    def products(self, devices: Iterable[Device]) -> dict[Device, Product]:
        """Return the product of each vGPU among *devices* whose card is known."""
        return {
            slot: group.product
            for slot in slots(devices)
            for group in self.groups.values()
            if group.facts.id == slot.type_id and group.card_of(slot)
        }

    def _parent(self, slot: Slot) -> Parent:
        cards = (card.card for card in self.cards.values() if card.has(slot))
        return next((card.parents[slot.parent] for card in cards), UNKNOWN)


class VGPUCards:
    """The reader of the cards that are offered as vGPUs.

    It reads the host only in :meth:`read` and :meth:`read_again`, never while a claim waits.
    ``look`` is the result of the last reading, with all reasons against the cards.
    """

    def __init__(
        self,
        roots: Roots,
        deliveries: Deliveries,
        facts: division.TypesByFunction = MappingProxyType({}),
    ) -> None:
        """Create a reader that has not read any card yet."""
        self._roots = roots
        self._deliveries = deliveries
        self._facts = facts
        self._reading = threading.Lock()
        self._lock = threading.Lock()
        self._read: Inspection = Inspection()
        # The reasons by card, empty for a healthy one; and by source the reasons of parts, which an
        # inspection of the card does not change
        self._judged: Mapping[PciAddress, Reasons] = {}
        self._parts: Mapping[Source, Mapping[Device, Reasons]] = {}
        self._former_reasons: Mapping[PciAddress, Unavailable | None] = {}
        self._missed: set[Slot] = set()
        self._others: Mapping[PciAddress, Reasons] = {}
        self._gpus: Mapping[PciAddress, GPU] = {}
        # Undivided cards that this service has never seen divided, and of which instances have
        # parts
        self._made_whole: list[GPU] = []
        self.look = Inspection()

    def read(
        self,
        cards_: Iterable[GPU],
        whole: Collection[PciAddress] = (),
        held: Collection[Slot] = (),
    ) -> Mapping[PciAddress, Reasons]:
        """Find the cards to offer as vGPUs; return why cards are not offered whole, by card.

        A card that was offered as vGPUs before stays in :attr:`look`, because an instance may have
        one of its vGPUs. Call :meth:`judge` next.

        :param whole: the cards that instances have whole; they are not offered as vGPUs
        :param held: the vGPUs that instances have; their cards are not offered whole, even if
            their drivers report no vGPU types now
        :raises OSError: if the kernel's list of mediated devices cannot be read
        """
        gpus = {gpu.address: gpu for gpu in cards_ if gpu.address not in whole}
        with self._reading:
            there = frozenset(mdev.devices(self._roots))
            divided = self._divided(gpus.values())
            cards, others = discovery.sorted_out(gpus, divided, self._deliveries)
            with self._lock:
                for address, before in self._read.cards.items():
                    if address in cards or address in whole:
                        continue
                    # With the card's present driver, by which its device nodes are found.
                    before = dataclasses.replace(before, gpu=gpus.get(address, before.gpu))
                    if before.card.has_instances and address in others:
                        # An instance may start with the MIG instance that it has, if its nodes
                        # exist; only new instances are refused.
                        reasons = unavailability.to_new(others[address])
                    else:
                        gone = _NOT_DIVIDED if address in gpus else card_groups.GONE
                        reasons = others.get(address, (gone,))
                    cards[address] = dataclasses.replace(before, unavailable={address: reasons})
                parted = discovery.held_in_parts(gpus, cards, held)
                self._made_whole = [gpus[address] for address in parted if address not in divided]
                others = {**parted, **others}
                self._others, self._gpus = others, gpus
                self._take_in(cards, there)
        return {**others, **dict.fromkeys(cards.keys() & gpus.keys(), (_IN_PARTS,))}

    def judge(self, unavailable: Mapping[PciAddress, Reasons]) -> None:
        """Replace the reasons against the cards of the last :meth:`read`, and log changes.

        Until then new instances get no vGPUs of a card that :meth:`read` has added.
        """
        with self._lock:
            self._judged = {card: unavailable.get(card, ()) for card in self._read.cards}
            self._take_in(self._read.cards, self._read.there)
        self._say()

    def reserve(self, reasons: Mapping[PciAddress, Reasons]) -> None:
        """Add *reasons* against offering vGPUs of cards, until the next :meth:`judge`."""
        with self._lock:
            own = {card: reasons[card] for card in self._judged if card in reasons}
            self._judged = {**self._judged, **unavailability.merge(own, self._judged)}
            self._take_in(self._read.cards, self._read.there)

    def reserve_parts(self, source: Source, reasons: Mapping[Device, Reasons]) -> None:
        """Replace all reasons of *source* against PCI functions and MIG instances by *reasons*."""
        with self._lock:
            self._parts = {**self._parts, source: reasons}
            self._take_in(self._read.cards, self._read.there)

    def read_again(self, part: Device) -> None:
        """Read only the card of *part* again, after a vGPU was made or removed there.

        Raise nothing: if the card cannot be read, the last reading stays in force, and a claim may
        get a vGPU that the kernel then refuses to make.
        """
        with self._reading:
            try:
                there = frozenset(mdev.devices(self._roots))
                # Functions without types do not change, and all of a product are read together.
                cards_ = self.look.cards.values()
                gpus = [c.gpu for c in cards_ if c.has(part) and not c.card.is_plain]
                divided = self._divided(gpus)
            except OSError as error:
                LOG.warning(
                    "Cannot read the card of vGPU %s again, will count its room as before until "
                    "the next period: %s",
                    part,
                    error,
                )
                return
            with self._lock:
                cards = dict(self._read.cards)
                for address, card in divided.items():
                    if address not in cards:
                        continue
                    unfit = self._deliveries.sets.look_at_parts(cards[address].gpu, card)
                    if selected := discovery.selected(card, unfit):
                        cards[address] = dataclasses.replace(cards[address], card=selected)
                self._take_in(cards, there)

    def undivided(self) -> list[GPU]:
        """Return present cards that are undivided now, but were offered or are held as vGPUs."""
        cards = self.look.cards.values()
        made_whole = (card.gpu for card in cards if _NOT_DIVIDED in card.reasons)
        return [*self._made_whole, *made_whole]

    def names(self, slot: Slot) -> Mapping[str, str]:
        """Return the known names of the vGPU types of the slot's PCI function, by type id.

        The result is empty unless the function is a virtual function that gets an NVIDIA vGPU type:
        the driver lists only the types that still fit there, so the others are remembered.
        """
        known = self._facts.get(slot.parent, {})
        return {type_id: facts.name for type_id, facts in known.items() if facts.name}

    def _divided(self, gpus: Iterable[GPU]) -> dict[PciAddress, DividedCard]:
        """Return those of *gpus* that are divided or can be, and record their vGPU types."""
        divided = self._deliveries.divided(gpus, self._facts)
        news = {
            address: card.types
            for card in divided.values()
            for address, parent in card.parents.items()
            if parent.kind.hides_types
        }
        self._facts = {**self._facts, **news}
        return divided

    def including(self, recorded: Collection[tuple[GroupKey, Device]]) -> None:
        """Keep the vGPUs of instances in *recorded*, even if their card or type is gone."""
        with self._lock:
            cards = dict(self._read.cards)
            for key, slot in ((key, slot) for key, other in recorded for slot in slots([other])):
                group = self.look.groups.get(key)
                card = group.card_of(slot) if group else None
                if card is None or card.lacks(slot):
                    # A function of another type than before, because the host's others changed
                    known = next((card for card in cards.values() if card.has(slot)), None)
                    is_same = known is not None and known.card.is_plain
                    if slot not in self._missed and not is_same:
                        self._missed.add(slot)
                        LOG.error(
                            "An instance has vGPU %s, whose card or type this host no longer has; "
                            "restore that, or move or delete the instance",
                            slot,
                        )
                    added = _with_slot(known or self._unknown(key, slot), slot)
                    cards[added.gpu.address] = added
            if cards != self._read.cards:
                self._take_in(cards, self._read.there)

    def _unknown(self, key: GroupKey, slot: Slot) -> SharedCard:
        """Return an unavailable card for *slot*, which the last inspection did not find there."""
        gpu = self._gpus.get(slot.parent) or card_groups.missing(key, slot.parent)
        bare = DividedCard({}, {slot.parent: UNKNOWN})
        card = device.card_of(slot.parent, self._gpus) or slot.parent
        reasons = self._others.get(card, (card_groups.NOT_FOUND,))
        return SharedCard(gpu, bare, {gpu.address: reasons})

    def _take_in(self, cards: Mapping[PciAddress, SharedCard], there: frozenset[str]) -> None:
        self._read = Inspection(cards, {}, there)
        judged = {address: self._as_judged(card) for address, card in cards.items()}
        before = self.look.cards
        if judged != before or there != self.look.there:
            # An unchanged card stays the same object, because caches compare cards by identity.
            judged = {a: before[a] if before.get(a) == card else card for a, card in judged.items()}
            self.look = Inspection(judged, groups(judged), there)

    def _as_judged(self, card: SharedCard) -> SharedCard:
        address = card.gpu.address
        own: dict[Device, Reasons] = {address: self._judged.get(address, (_NOT_JUDGED,))}
        parts = unavailability.merge(*self._parts.values())
        own |= {part: parts[part] for part in parts if card.has(part)}
        unavailable = unavailability.merge(card.unavailable, own)
        functions = device.cards(unavailable) - {address}
        return dataclasses.replace(card, unavailable=unavailable).without(functions)

    def _say(self) -> None:
        """Log which cards have begun to be offered as vGPUs, or are no longer, and why."""
        cards = self.look.cards.items()
        now = {address: unavailability.worst(card.reasons) for address, card in cards}
        for address, reason in sorted(
            now.items() - self._former_reasons.items(), key=lambda item: item[0]
        ):
            if reason is None:
                types = ", ".join(sorted(self.look.cards[address].card.types))
                LOG.info("GPU %s is offered as vGPUs of types %s", address, types)
            else:
                LOG.error("New instances do not get vGPUs of GPU %s: %s", address, reason)
        self._former_reasons = now


def _with_slot(known: SharedCard, slot: Slot) -> SharedCard:
    """Return *known* with the type of *slot* added, of which no further vGPU can be made."""
    types = {slot.type_id: VGPUType(slot.type_id), **known.card.types}
    parents = {
        address: dataclasses.replace(parent, available={**parent.available, slot.type_id: 0})
        for address, parent in known.card.parents.items()
    }
    return dataclasses.replace(known, card=DividedCard(types, parents))
