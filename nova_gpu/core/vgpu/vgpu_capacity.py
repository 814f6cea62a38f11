# SPDX-License-Identifier: Apache-2.0
"""A card's capacity: how many more vGPUs of a type it has room for.

Types share the capacity of a card: what vGPUs of one type take is reserved in the inventories of
the others. The driver reports how much the existing vGPUs take. Only nova-gpu knows which vGPUs are
promised to instances but not made yet; until a promised one is made, its card accepts that type
only. MIG instances and functions without types do not share capacity: they exist, each with its
type, and are free or in use.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import MAX_PER_CARD, DividedCard, Slot, VGPUType


@dataclasses.dataclass(frozen=True, slots=True)
class CardCapacity:
    """The capacity of one card for vGPUs of one type, in numbers of vGPUs.

    ``total`` is the largest possible number of them, ``taken`` the number that instances hold or
    are promised, and ``free`` the number that instances could get now. The rest is ``reserved``:
    vGPUs of other types or programs outside Nova use that part of the card.
    """

    total: int
    taken: int
    free: int

    @property
    def reserved(self) -> int:
        return self.total - self.taken - self.free


def room(
    card: DividedCard, type_id: str, taken: Collection[Slot] = (), pending: Collection[Slot] = ()
) -> CardCapacity:
    """Return the room of *card* for vGPUs of the type.

    :param taken: the slots of the card, of all types, that instances hold or are promised
    :param pending: those of *taken* at which no vGPU exists yet
    """
    own = sum(slot.type_id == type_id for slot in taken)
    if card.has_instances:
        free = len(_untaken(card, type_id, taken))
        return CardCapacity(max(carried(card, type_id) or 0, own + free), own, free)
    promised = [slot.type_id for slot in pending]
    free = 0
    if card.is_plain:
        free = sum(1 for _ in _open(card, type_id, taken, pending))
    elif all(profile == type_id for profile in promised):
        free = max(_available(card, type_id) - len(promised), 0)
    return CardCapacity(max(_most(card, type_id) or 0, own + free), own, free)


def free_slots(
    card: DividedCard, type_id: str, taken: Collection[Slot] = (), pending: Collection[Slot] = ()
) -> tuple[Slot, ...]:
    """Return the free slots of the type on *card*, sorted, as many as :func:`room` counts.

    The parameters are those of :func:`room`.
    """
    if card.has_instances:
        return tuple(_untaken(card, type_id, taken))
    count = room(card, type_id, taken, pending).free
    return tuple(itertools.islice(_open(card, type_id, taken, pending), count))


def instances(card: DividedCard, type_id: str) -> list[Slot]:
    """Return the slots of the card's MIG instances of the type, in order."""
    return sorted(
        Slot(address, type_id, number)
        for address, parent in card.parents.items()
        for number in parent.numbers.get(type_id, ())
    )


def _untaken(card: DividedCard, type_id: str, taken: Collection[Slot]) -> list[Slot]:
    """Leave out slots in *taken*, also under a former profile, and those that share memory."""
    places = {slot.place for slot in taken}
    return [
        slot
        for slot in instances(card, type_id)
        if slot.place not in places and slot.number not in card.sharing
    ]


def all_instances(card: DividedCard) -> list[Slot]:
    """Return the slots of the card's MIG instances of all types."""
    if not card.has_instances:
        return []
    return [slot for type_id in sorted(card.types) for slot in instances(card, type_id)]


def _open(
    card: DividedCard, type_id: str, taken: Collection[Slot], pending: Collection[Slot]
) -> Iterator[Slot]:
    for address in sorted(card.parents):
        promised = sum(slot.parent == address for slot in pending)
        numbers = (n for n in itertools.count() if Slot(address, type_id, n) not in taken)
        for _ in range(card.parents[address].available.get(type_id, 0) - promised):
            yield Slot(address, type_id, next(numbers))


def _available(card: DividedCard, type_id: str) -> int:
    """Return how many more vGPUs of the type the driver can make on all functions of the card.

    Each function reports its number as if the others made none meanwhile. So one more vGPU is
    possible if any function reports one; for more, the card itself must have room (:func:`_left`).
    """
    types = [
        count for parent in card.parents.values() if (count := parent.available.get(type_id, 0))
    ]
    if len(types) < 2:
        return sum(types)
    facts = card.types.get(type_id)
    left = None if facts is None else _left(card, facts)
    return min(sum(types), max(left or 0, 1))


def _left(card: DividedCard, facts: VGPUType) -> int | None:
    """Return how many more vGPUs fit next to those made, by the types' sizes; or ``None``."""
    most = carried(card, facts.id)
    if most is None:
        return None
    if (left := _left_in_instances(card, facts, most)) is not None:
        return left
    if (left := _left_in_places(card, facts)) is not None:
        return left
    made: collections.Counter[str] = collections.Counter()
    for parent in card.parents.values():
        made.update(parent.made)
    # The room that each existing vGPU takes of the card, rounded up to whole vGPUs of this type.
    return most - sum(
        count * _weight(card, card.types.get(type_id, VGPUType(type_id)), facts)
        for type_id, count in made.items()
    )


def _left_in_instances(card: DividedCard, facts: VGPUType, most: int) -> int | None:
    """Return how many more vGPUs fit into GPU instances that several of them share by time.

    A GPU instance carries vGPUs of one memory size (measured: bigstack-oss/cubecos). If it is
    unknown where a vGPU of another size is, it counts as alone in its instance. Return ``None`` if
    the type has no such instances, or the type of an existing vGPU is unknown.
    """
    capacity = facts.per_instance
    if facts.profile is None or not capacity:
        return None
    counts: collections.Counter[int | PciAddress | None] = collections.Counter()
    sizes = {}
    for address, parent in card.parents.items():
        for other in (card.types.get(type_id) for type_id in parent.made):
            if other is None:
                return None
            if other.profile == facts.profile:
                is_alone = parent.gpu_instance is None and other.memory_mib != facts.memory_mib
                instance = address if is_alone else parent.gpu_instance
                counts[instance] += 1
                sizes[instance] = other.memory_mib
    same = (capacity - count for g, count in counts.items() if sizes[g] == facts.memory_mib)
    return (most // capacity - len(counts)) * capacity + sum(same)


def _left_in_places(card: DividedCard, facts: VGPUType) -> int | None:
    """Return how many more vGPUs fit on a card whose vGPUs may be of several sizes.

    Each takes a part of the card, at one of the places of its type (NVIDIA's vGPU user guide and
    nvml.h on placements). Return ``None`` if the type has no places, or the place of an existing
    vGPU is unknown.
    """
    if not facts.places or not facts.place_size:
        return None
    parts = []
    for parent in card.parents.values():
        for other in (card.types.get(type_id) for type_id in parent.made):
            if other is None or other.place_size is None or parent.place is None:
                return None
            parts.append((parent.place, parent.place + other.place_size))
    left, end = 0, 0
    for place in sorted(facts.places):
        after = place + facts.place_size
        if place >= end and all(stop <= place or start >= after for start, stop in parts):
            left, end = left + 1, after
    return left


def _weight(card: DividedCard, other: VGPUType, facts: VGPUType) -> int:
    """Return how many vGPUs of *facts* one of *other* displaces, rounded up; all if unknown."""
    if other.id == facts.id:
        return 1
    if None not in (other.profile, facts.profile) and other.profile != facts.profile:
        return 0
    most = carried(card, facts.id) or 0
    others = carried(card, other.id)
    return -(-most // others) if others else most


def _most(card: DividedCard, type_id: str) -> int | None:
    """Return how many vGPUs of the type can exist on the card at once, ``None`` if unknown."""
    most = carried(card, type_id)
    parents = card.parents.values()
    if most is None or (len(parents) == 1 and all(p.kind.is_mediated for p in parents)):
        return most
    return min(most, len(card.parents))  # one at each


def carried(card: DividedCard, type_id: str) -> int | None:
    """Return how many vGPUs of the type an otherwise empty card carries, ``None`` if unknown.

    NVIDIA's driver reports the number for mediated devices. For virtual functions and MIG instances
    it is the size of the largest type, which takes the whole card, divided by the size of this one.
    A number above :data:`MAX_PER_CARD` counts as unknown.
    """
    facts = card.types.get(type_id)
    if facts is None:
        return None
    most = facts.per_card
    if most is None:
        most = min(_shares(card.types.values(), facts), default=None)
    return None if most is not None and most > MAX_PER_CARD else most


def whole_types(card: DividedCard) -> frozenset[str]:
    """Return the ids of the types of which one vGPU takes the whole card, without MIG."""
    return frozenset(
        type_id
        for type_id, facts in card.types.items()
        if carried(card, type_id) == 1 and not (facts.slices or facts.profile)
    )


def _shares(types: Iterable[VGPUType], facts: VGPUType) -> Iterator[int]:
    listed = list(types)
    if facts.memory_mib:
        yield max(vgpu_type.memory_mib or 0 for vgpu_type in listed) // facts.memory_mib
    if facts.slices:
        yield max(vgpu_type.slices or 0 for vgpu_type in listed) // facts.slices


class Order(enum.StrEnum):
    """The choice of the card that gets the next vGPU, in XenServer's words.

    Depth first chooses the card with the fewest free slots, so that whole cards stay free for large
    types. Breadth first chooses the one with the most, so that each vGPU shares its card with as
    few others as possible. Among equal cards, the first by address is chosen.
    """

    DEPTH_FIRST = "depth_first"
    BREADTH_FIRST = "breadth_first"


def choose(free: Mapping[PciAddress, Sequence[Slot]], count: int, order: Order) -> tuple[Slot, ...]:
    """Return *count* of the *free* slots, in the order in which *order* chooses them."""
    left = {card: list(slots) for card, slots in free.items()}
    if not 0 <= count <= sum(map(len, left.values())):
        raise ValueError(f"cannot choose {count} of {sum(map(len, left.values()))} free vGPUs")
    sign = 1 if order is Order.DEPTH_FIRST else -1
    chosen = []
    for _ in range(count):
        card = min(
            (address for address, slots in left.items() if slots),
            key=lambda address: (sign * len(left[address]), address),
        )
        chosen.append(left[card].pop(0))
    return tuple(chosen)
