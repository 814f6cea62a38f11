# SPDX-License-Identifier: Apache-2.0
"""Which of a host's cards are given in parts, by what was read of them last."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from oslo_log import log as logging

from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, GroupKey, PciAddress
from nova_gpu.core.vgpu import DividedCard, Kind, Parent, Slot, VGPUType, device_uuid
from nova_gpu.core.vgpu_group import SharedCard, VGPUGroup, groups
from nova_gpu.host import division, mdev
from nova_gpu.host.roots import Roots
from nova_gpu.virt import offer as offers
from nova_gpu.virt import vgpu_selection
from nova_gpu.virt.pci_aliases import DeviceSpec

LOG = logging.getLogger(__name__)

WHOLE_IS_DIVIDED = "it is given in parts, as vGPUs"
_NOT_JUDGED = "it was not looked at to the end yet"
_NOT_DIVIDED = "its driver makes no vGPUs of it any more"


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """One reading: the cards that are given in parts, their groups, and the uuids of all mediated
    devices there are."""

    cards: Mapping[PciAddress, SharedCard] = dataclasses.field(default_factory=dict)
    groups: Mapping[GroupKey, VGPUGroup] = dataclasses.field(default_factory=dict)
    there: frozenset[str] = frozenset()

    def has(self, address: PciAddress) -> bool:
        return address in self.cards

    def kind(self, slot: Slot) -> Kind:
        """Of what the vGPU at *slot* is made"""
        parent = self._parent(slot)
        return Kind.MEDIATED if parent is None else parent.kind

    def is_made(self, slot: Slot, instance_uuid: str | None) -> bool:
        """At a plain virtual function never: it needs not be made.

        :param instance_uuid: for whom, where it is known: a virtual function does not tell
        """
        parent = self._parent(slot)
        if parent is not None and parent.kind is not Kind.MEDIATED:
            return slot.type_id in parent.made
        return instance_uuid is not None and device_uuid(instance_uuid, slot) in self.there

    def _parent(self, slot: Slot) -> Parent | None:
        cards = (card.card for card in self.cards.values() if card.has(slot))
        return next((card.parents[slot.parent] for card in cards), None)


class VGPUCards:
    """Reads when it is told to, never while a claim waits; ``look`` is what it knows."""

    def __init__(
        self, roots: Roots, device_spec: DeviceSpec, told: division.Told = MappingProxyType({})
    ) -> None:
        """:param told: as :func:`nova_gpu.host.division.divided` has it, by earlier services"""
        self._roots = roots
        self._device_spec = device_spec
        self._told = told
        self._reading = threading.Lock()
        self._lock = threading.Lock()
        self._read: Look = Look()
        self._ailments: offers.Ailments | None = None
        self._judged: frozenset[PciAddress] = frozenset()
        self._said: Mapping[PciAddress, str | None] = {}
        self._missed: set[Slot] = set()
        self.look = Look()

    def read(
        self, found: Iterable[GPU], whole: Collection[PciAddress] = ()
    ) -> Mapping[PciAddress, str]:
        """Looks at all the host's cards; why those that are divided are not given whole.

        A card that was given in parts stays one, because an instance may have one of them.

        :param whole: the cards that instances have whole, which are not divided
        :raises OSError: where the kernel does not tell which mediated devices there are
        """
        gpus = {gpu.address: gpu for gpu in found if gpu.address not in whole}
        with self._reading:
            there = frozenset(mdev.devices(self._roots))
            divided = self._divided(gpus.values())
            cards, others = vgpu_selection.sorted_out(gpus, divided, self._device_spec, self._roots)
            with self._lock:
                for address, before in self._read.cards.items():
                    if address not in cards and address not in whole:
                        reason = _NOT_DIVIDED if address in gpus else offers.GONE
                        cards[address] = dataclasses.replace(before, ill=reason)
                self._take_in(cards, there)
        return {**others, **dict.fromkeys(cards.keys() & gpus.keys(), WHOLE_IS_DIVIDED)}

    def judge(self, ailments: offers.Ailments) -> None:
        """How the cards of the last :meth:`read` are."""
        with self._lock:
            self._ailments, self._judged = ailments, frozenset(self._read.cards)
            self._take_in(self._read.cards, self._read.there)
        self._say()

    def withhold(self, reason: str) -> None:
        """Nobody new is given any before the next :meth:`judge`."""
        with self._lock:
            self._ailments = offers.Ailments({}, dict.fromkeys(self._read.cards, reason))
            self._take_in(self._read.cards, self._read.there)

    def read_again(self, device: Device) -> None:
        """Looks at the card of *device* alone, where something was made or removed. Raises nothing:
        what is not read stays, and what the kernel then refuses is refused."""
        with self._reading:
            try:
                there = frozenset(mdev.devices(self._roots))
                gpus = [each.gpu for each in self.look.cards.values() if each.has(device)]
                divided = self._divided(gpus)
            except OSError as error:
                LOG.warning("What can be made beside vGPU %s is not known: %s", device, error)
                return
            with self._lock:
                cards = dict(self._read.cards)
                for address, card in divided.items():
                    if address in cards and (selected := vgpu_selection.selected(card)):
                        cards[address] = dataclasses.replace(cards[address], card=selected)
                self._take_in(cards, there)

    def names(self, slot: Slot) -> Mapping[str, str]:
        """What the types of the card of *slot* are called, by id; nothing where its driver goes on
        telling that."""
        known = self._told.get(slot.parent, {})
        return {type_id: facts.name for type_id, facts in known.items() if facts.name}

    def _divided(self, gpus: Iterable[GPU]) -> dict[PciAddress, DividedCard]:
        """:raises OSError: as :func:`nova_gpu.host.division.divided`"""
        found = division.divided(gpus, self._roots, self._told)
        news = {
            address: card.types
            for card in found.values()
            for address, parent in card.parents.items()
            if parent.kind is Kind.TYPED
        }
        self._told = {**self._told, **news}
        return found

    def including(self, recorded: Collection[tuple[GroupKey, Device]]) -> None:
        """Instances have these, also of cards and types that the host does not have, or does not
        offer any more: they stay known, and nobody new is given one."""
        with self._lock:
            cards = dict(self._read.cards)
            for key, slot in recorded:
                group = self.look.groups.get(key)
                if isinstance(slot, Slot) and not (group and group.card_of(slot)):
                    if slot not in self._missed:
                        self._missed.add(slot)
                        LOG.error("vGPU %s of an instance is not one that this host offers", slot)
                    known = next((card for card in cards.values() if card.has(slot)), None)
                    added = _with_slot(known, key, slot)
                    cards[added.gpu.address] = added
            if cards != self._read.cards:
                self._take_in(cards, self._read.there)

    def _take_in(self, cards: Mapping[PciAddress, SharedCard], there: frozenset[str]) -> None:
        self._read = Look(cards, {}, there)
        judged = {address: self._as_judged(card) for address, card in cards.items()}
        self.look = Look(judged, groups(judged), there)

    def _as_judged(self, card: SharedCard) -> SharedCard:
        address = card.gpu.address
        if self._ailments is None or address not in self._judged:
            return dataclasses.replace(card, withheld=_NOT_JUDGED)
        ill = card.ill or self._ailments.ill.get(address)
        return dataclasses.replace(card, ill=ill, withheld=self._ailments.kept_back.get(address))

    def _say(self) -> None:
        """Once, until it changes."""
        now = {address: card.ill or card.withheld for address, card in self.look.cards.items()}
        for address, reason in sorted(now.items() - self._said.items(), key=lambda each: each[0]):
            if reason is None:
                types = ", ".join(sorted(self.look.cards[address].card.types))
                LOG.info("GPU %s is offered to instances in parts: %s", address, types)
            else:
                LOG.error("GPU %s is not given to new instances in parts: %s", address, reason)
        self._said = now


def _with_slot(known: SharedCard | None, key: GroupKey, slot: Slot) -> SharedCard:
    """The card of *slot*, at which nothing more of its type can be made"""
    if known is None:
        types = {slot.type_id: VGPUType(slot.type_id)}
        bare = DividedCard(types, {slot.parent: Parent(Kind.MEDIATED, {}, {})})
        return SharedCard(offers.missing(key, slot.parent), bare, ill=offers.NOT_FOUND)
    types = {**known.card.types, slot.type_id: VGPUType(slot.type_id)}
    parents = {
        address: dataclasses.replace(parent, available={**parent.available, slot.type_id: 0})
        for address, parent in known.card.parents.items()
    }
    return dataclasses.replace(known, card=DividedCard(types, parents))
