# SPDX-License-Identifier: Apache-2.0
"""The division of a host's cards into vGPUs: which cards, by which functions, of which types."""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from nova_gpu.core import model, vendors
from nova_gpu.core.vgpu import vgpu
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.vgpu import gim, mdev, sriov

LOG = logging.getLogger(__name__)

# The existing vGPUs: for each function how many of each type.
_Made = Mapping[model.PciAddress, Mapping[str, int]]
# The known types of one product, by id; None for one that guests cannot have.
_Types = dict[str, vgpu.VGPUType | None]


# The types, by id, that a driver has listed earlier for the card of a virtual function.
TypesByFunction = Mapping[model.PciAddress, Mapping[str, vgpu.VGPUType]]


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading a card whose vGPUs are mediated devices, for reuse by the next call.

    ``parents`` are the functions that create the mediated devices, ``registered`` is the
    :func:`nova_gpu.host.vgpu.mdev.registration` of each, and ``types`` are the vGPU types by id.
    ``rechecks`` counts the later calls that found the card unchanged.
    """

    registered: Mapping[model.PciAddress, int]
    parents: Mapping[model.PciAddress, vgpu.Parent]
    types: _Types
    rechecks: int = 0


def divided(
    cards: Iterable[model.GPU],
    roots: Roots,
    earlier_types: TypesByFunction = MappingProxyType({}),
    readings: dict[model.PciAddress, Reading] | None = None,
    modes: Mapping[model.PciAddress, str] = MappingProxyType({}),
) -> dict[model.PciAddress, vgpu.DividedCard]:
    """Return the *cards* that are divided into vGPUs or can be, by address.

    A card that cannot be read is included, with the reason in ``unread``.

    :param earlier_types: types that a card keeps even if its driver does not list them now, as
        NVIDIA's driver lists only types of which one more vGPU has room
    :param readings: the results of the earlier calls by card, which each call updates. They save
        reading thousands of files per card: while a card has the same functions and mediated
        devices, a call reads one of its functions, the next one each time, and reads the others
        only if that one has changed.
    :param modes: the partition modes of AMD's cards (:func:`nova_gpu.host.vgpu.gim.modes`)
    :raises OSError: if the host's mediated devices cannot be listed
    """
    made: dict[model.PciAddress, collections.Counter[str]] = {}
    for device in mdev.devices(roots).values():
        if device.parent is not None:
            made.setdefault(device.parent, collections.Counter())[device.type_id] += 1
    # The driver writes the same text for a type at every function of every card of a product.
    known: dict[str, _Types] = {}
    readings = {} if readings is None else readings
    by_card = {}
    plain_cards: dict[model.GPU, Mapping[model.PciAddress, int | None]] = {}
    for card in cards:
        before = readings.pop(card.address, None)
        try:
            types = known.setdefault(card.product.key, {})
            functions = _functions(card.address, roots)
            registered = _registered(functions)
            if before and _is_unchanged(before, functions, registered, made, types):
                for type_id in before.types.keys() - types.keys():
                    types[type_id] = before.types[type_id]
                parents, rechecks = before.parents, before.rechecks + 1
            else:
                parents, rechecks = dict(_parents(card.address, functions, made, types)), 0
            plain = {} if parents else _plain(card, roots)
        except (OSError, ValueError) as error:
            unread = f"its driver does not tell how it is divided: {error}; see the kernel's log"
            LOG.warning("GPU %s gets no new instances: %s", card.address, unread)
            by_card[card.address] = vgpu.DividedCard({}, {}, unread)
            continue
        if parents:
            types_of_card = _types_of(parents, types, earlier_types)
            by_card[card.address] = vgpu.DividedCard(types_of_card, parents)
            if registered.keys() == parents.keys():
                readings[card.address] = Reading(registered, parents, types, rechecks)
        elif plain:
            plain_cards[card] = plain
    return {**by_card, **_plain_divided(plain_cards, modes)}


def _plain_divided(
    cards: Mapping[model.GPU, Mapping[model.PciAddress, int | None]],
    modes: Mapping[model.PciAddress, str],
) -> dict[model.PciAddress, vgpu.DividedCard]:
    """Return the division of cards whose functions have no types, by address.

    All functions of a product have the type FUNCTION_TYPE if they are equal, as in all releases.
    Otherwise a flavor could get less than it asks for, so each has the type of its division.

    :param cards: the functions of each card, with the memory of each
    """
    divisions: dict[str, set[tuple[int, int | None, str]]] = {}
    modes = {c.address: gim.unusual(modes.get(c.address, ""), len(cards[c])) for c in cards}
    for card, functions in cards.items():
        mode = modes[card.address]
        own = {(len(functions), memory_mib, mode) for memory_mib in functions.values()}
        divisions.setdefault(card.product.key, set()).update(own)
    by_card = {}
    for card, functions in cards.items():
        number, counts = len(functions), collections.Counter(functions.values())
        mode = modes[card.address]
        is_same = len(divisions[card.product.key]) == 1
        ids = {
            memory: vgpu.FUNCTION_TYPE if is_same else vgpu.function_type(number, memory, mode)
            for memory in counts
        }
        name = vgpu.function_type(number, mode=mode) if len(counts) == 1 else None
        types = {
            ids[memory]: vgpu.VGPUType(ids[memory], name, memory_mib=memory, per_card=count)
            for memory, count in counts.items()
        }
        # Instances may have functions by the type of before. New ones get none by it.
        types.setdefault(vgpu.FUNCTION_TYPE, vgpu.VGPUType(vgpu.FUNCTION_TYPE, per_card=0))
        parents = {
            function: vgpu.Parent(vgpu.VGPUKind.PLAIN, {ids[memory]: 1}, {})
            for function, memory in functions.items()
        }
        by_card[card.address] = vgpu.DividedCard(types, parents)
    return by_card


def with_facts(card: vgpu.DividedCard, facts: Mapping[str, vgpu.VGPUType]) -> vgpu.DividedCard:
    """Return *card* with NVML's *facts* about vGPU types, by type id, merged into its types.

    A type that only NVML reports is added if the card can carry a vGPU of it. A fact that NVML does
    not report is unchanged.
    """
    types = {
        type_id: _merged(facts[type_id], card.types.get(type_id, facts[type_id]))
        for type_id in facts
        if facts[type_id].per_card or type_id in card.types
    }
    merged = {**card.types, **types}
    return dataclasses.replace(card, types={address: merged[address] for address in sorted(merged)})


def _merged(by_nvml: vgpu.VGPUType, known: vgpu.VGPUType) -> vgpu.VGPUType:
    fields = dataclasses.asdict(by_nvml)
    return dataclasses.replace(
        known, **{name: value for name, value in fields.items() if value is not None}
    )


def _types_of(
    parents: Mapping[model.PciAddress, vgpu.Parent], known: _Types, earlier_types: TypesByFunction
) -> dict[str, vgpu.VGPUType]:
    there: set[str] = set()
    for parent in {id(parent): parent for parent in parents.values()}.values():
        there.update(parent.available, parent.made)
    facts = {parent: known.get(parent, vgpu.VGPUType(parent)) for parent in there}
    if earlier_types:
        # On a full card NVIDIA's driver does not name the types of its functions any more.
        typed = (a for a, parent in parents.items() if parent.kind.hides_types)
        before = next(filter(None, (earlier_types.get(a, {}) for a in typed)), {})
        facts |= {address: known.get(address, before[address]) for address in before}
    return {address: fact for address in sorted(facts) if (fact := facts[address]) is not None}


def _functions(address: model.PciAddress, roots: Roots) -> dict[str, model.PciAddress]:
    """Return the addresses of the card and of its virtual functions, by their sysfs folders."""
    card = sysfs.device(address, roots)
    above = card.rpartition("/")[0]
    virtual = sriov.virtual_functions(card).items()
    return {card: address, **{f"{above}/{name}": function for name, function in virtual}}


def _registered(functions: Mapping[str, model.PciAddress]) -> dict[model.PciAddress, int]:
    """Return the registration number of each function that can create mediated devices."""
    registrations = {function: mdev.registration(folder) for folder, function in functions.items()}
    return {function: number for function, number in registrations.items() if number is not None}


def _is_unchanged(
    before: Reading,
    functions: Mapping[str, model.PciAddress],
    registered: Mapping[model.PciAddress, int],
    made: _Made,
    known: _Types,
) -> bool:
    """Return whether a card has the same registrations and mediated devices as *before*.

    The types of one of its functions are compared, too.
    """
    if before.registered != registered:
        return False
    if any(made.get(item, {}) != parent.made for item, parent in before.parents.items()):
        return False
    parents = [folder for folder, function in functions.items() if function in registered]
    folder = parents[before.rechecks % len(parents)]
    function = functions[folder]
    parent = _mediating(folder, mdev.types(folder), made.get(function, {}), known)
    return parent == before.parents[function]


def _parents(
    address: model.PciAddress,
    functions: Mapping[str, model.PciAddress],
    made: _Made,
    known: _Types,
) -> Iterator[tuple[model.PciAddress, vgpu.Parent]]:
    """Yield the functions of the card that provide vGPUs; add their types to *known*."""
    before = None  # neighbours mostly say the same, and then are one object
    for device, function in functions.items():
        profiles = sriov.profiles(device) if function != address else None
        if profiles is not None:
            if profiles is not before:
                for type_id in profiles.names.keys() - known.keys():
                    known[type_id] = sriov.named(type_id, profiles.names[type_id])
            before = profiles
            parent = profiles.parent
            if parent.made:
                instance, place = sriov.where(device)
                parent = dataclasses.replace(parent, gpu_instance=instance, place=place)
            yield function, parent
        elif type_ids := mdev.types(device):
            yield function, _mediating(device, type_ids, made.get(function, {}), known)


def _plain(card: model.GPU, roots: Roots) -> dict[model.PciAddress, int | None]:
    """Return the enabled functions of a card whose driver has no vGPU types, with their memory."""
    if vendors.of(card.product.vendor_id).needs_types:
        return {}
    device = sysfs.device(card.address, roots)
    functions = sriov.virtual_functions(device).values()
    return {
        function: sriov.memory_mib(device, number) for number, function in enumerate(functions, 1)
    }


def _mediating(
    device: str, type_ids: Iterable[str], made: Mapping[str, int], known: _Types
) -> vgpu.Parent:
    """Return the function *device*, which creates mediated devices; add its types to *known*."""
    if odd := sorted(device for device in made if not vgpu.is_type_id(device)):
        raise ValueError(f"{device} has a mediated device of the type {odd[0]!r}")
    available = {}
    for type_id in type_ids:
        if type_id not in known:
            known[type_id] = mdev.facts(device, type_id)
        if known[type_id] is not None:
            available[type_id] = mdev.available(device, type_id)
    return vgpu.Parent(vgpu.VGPUKind.MEDIATED, available, dict(made))
