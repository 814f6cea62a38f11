# SPDX-License-Identifier: Apache-2.0
"""The divided cards of a host, and the groups of vGPUs that they provide."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Set

from nova_gpu.core import device as devices
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, GroupKey, PciAddress, Product
from nova_gpu.core.unavailability import Reasons
from nova_gpu.core.vgpu import vgpu_capacity
from nova_gpu.core.vgpu.vgpu import DividedCard, Slot, VGPUType
from nova_gpu.core.vgpu.vgpu_capacity import CardCapacity


@dataclasses.dataclass(frozen=True, slots=True)
class SharedCard:
    """A card that instances share as vGPUs or MIG instances.

    ``unavailable`` are the reasons why the card, one of its functions or one of its MIG instances
    cannot be given now. ``unavailable_types`` are the ids of types that new instances do not get.
    ``joined`` are the cards, this one included, whose memory its parts may reach: one guest at a
    time may have parts of them. It is empty if the parts reach this card's memory only.
    """

    gpu: GPU
    card: DividedCard
    unavailable: Mapping[Device, Reasons] = dataclasses.field(default_factory=dict)
    unavailable_types: frozenset[str] = frozenset()
    joined: frozenset[PciAddress] = frozenset()

    @property
    def reasons(self) -> Reasons:
        return self.unavailable.get(self.gpu.address, ())

    def has(self, device: Device) -> bool:
        return devices.function(device) in self.card.parents

    def lacks(self, slot: Slot) -> bool:
        """Return whether *slot* is that of a MIG instance that the card no longer has."""
        return self.card.has_instances and slot not in vgpu_capacity.instances(
            self.card, slot.type_id
        )

    def without(self, whole: Set[Device]) -> SharedCard:
        """Return this card with no free vGPU at the functions that instances have *whole*.

        It has no free vGPU at all if an instance has the card itself whole.
        """
        parents = self.card.parents
        numbers = parents.keys() if self.gpu.address in whole else parents.keys() & whole
        if not numbers:
            return self
        none = {a: dataclasses.replace(parents[a], available={}, numbers={}) for a in numbers}
        card = dataclasses.replace(self.card, parents={**parents, **none})
        return dataclasses.replace(self, card=card)

    def room(
        self, type_id: str, taken: Collection[Slot], pending: Collection[Slot]
    ) -> CardCapacity:
        """Return the room of this card for the type, 0 free if the type or card is unavailable.

        The parameters are those of :func:`nova_gpu.core.vgpu.vgpu_capacity.room`, but may include
        slots of other cards.
        """
        room = vgpu_capacity.room(self.card, type_id, *self._own(taken, pending))
        if self.card.has_instances:
            free = len(self.free_slots(type_id, taken, pending))
            return dataclasses.replace(room, free=free)
        return room if self._offers(type_id) else dataclasses.replace(room, free=0)

    def free_slots(
        self, type_id: str, taken: Collection[Slot], pending: Collection[Slot]
    ) -> tuple[Slot, ...]:
        if not self._offers(type_id):
            return ()
        free = vgpu_capacity.free_slots(self.card, type_id, *self._own(taken, pending))
        return tuple(slot for slot in free if slot not in self.unavailable)

    def _offers(self, type_id: str) -> bool:
        return not self.reasons and type_id not in self.unavailable_types

    def slots(self, type_id: str, total: int) -> Iterator[Slot]:
        """Yield all slots of the type that the card, which carries *total*, can have."""
        if self.card.has_instances:
            yield from vgpu_capacity.instances(self.card, type_id)
            return
        for address, parent in self.card.parents.items():
            if self.card.is_plain and not parent.available.get(type_id):
                continue  # a function of another size
            count = parent.available.get(type_id, 0) + parent.made.get(type_id, 0)
            for number in range(total if len(self.card.parents) == 1 else max(count, 1)):
                yield Slot(address, type_id, number)

    def _own(
        self, taken: Collection[Slot], pending: Collection[Slot]
    ) -> tuple[list[Slot], list[Slot]]:
        return [slot for slot in taken if self.has(slot)], list(filter(self.has, pending))


@dataclasses.dataclass(frozen=True, slots=True)
class VGPUGroup:
    """All cards of one product that provide vGPUs of one type: one resource provider.

    ``product`` is that of the cards, except for the memory, which is that of one vGPU. ``cards``
    are by address.
    """

    key: GroupKey
    product: Product
    facts: VGPUType
    cards: Mapping[PciAddress, SharedCard]

    def card_of(self, slot: Slot) -> SharedCard | None:
        return next((card for card in self.cards.values() if card.has(slot)), None)


def groups(cards: Mapping[PciAddress, SharedCard]) -> dict[GroupKey, VGPUGroup]:
    """Return a group for each vGPU type of each product among *cards*, by its key."""
    by_key: dict[GroupKey, VGPUGroup] = {}
    for address, shared in cards.items():
        for type_id, facts in shared.card.types.items():
            key = group_key(shared.gpu.product, type_id)
            product = dataclasses.replace(shared.gpu.product, memory_mib=facts.memory_mib)
            group = by_key.get(key) or VGPUGroup(key, product, facts, {})
            product = group.product.completed_by(product)
            cards = {**group.cards, address: shared}
            by_key[key] = dataclasses.replace(group, product=product, cards=cards)
    return by_key


def group_key(product: Product, type_id: str) -> GroupKey:
    return GroupKey.of_parts(product.vendor_id, product.product_id, type_id)
