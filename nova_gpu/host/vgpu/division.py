# SPDX-License-Identifier: Apache-2.0
"""The division of a host's cards: which are or can be divided, and into what, in one pass."""

from __future__ import annotations

import collections
import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from nova_gpu.core import model
from nova_gpu.core.vgpu import vgpu
from nova_gpu.host import products
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.vgpu import mdev, sriov

LOG = logging.getLogger(__name__)

# The existing vGPUs: for each function how many of each type.
_Made = Mapping[model.PciAddress, Mapping[str, int]]
# The known types of one product, by id; None for one that guests cannot have.
_Types = dict[str, vgpu.VGPUType | None]


# The types that the card of a virtual function had in earlier answers.
Told = Mapping[model.PciAddress, Mapping[str, vgpu.VGPUType]]


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """The facts read of a card whose vGPUs are mediated devices.

    They are the functions that make these, the registration of each function
    (:func:`nova_gpu.host.vgpu.mdev.registration`), and the vGPU types. ``looks`` counts how often
    the card was read again and was unchanged.
    """

    registered: Mapping[model.PciAddress, int]
    parents: Mapping[model.PciAddress, vgpu.Parent]
    types: _Types
    looks: int = 0


def divided(
    cards: Iterable[model.GPU],
    roots: Roots,
    answers: Told = MappingProxyType({}),
    readings: dict[model.PciAddress, Reading] | None = None,
) -> dict[model.PciAddress, vgpu.DividedCard]:
    """Return the *cards* that are or can be divided, by address.

    They include cards whose driver does not tell it. NVIDIA's driver lists only the types that
    still fit with the vGPUs that exist, so the types in earlier *answers* stay among the card's
    types.

    :param readings: what earlier calls have read, by card; each call updates it. It saves reading
        thousands of files per card: while a card's functions and mediated devices are the same as
        before, a call reads one function, a different one each time, and reads the others only if
        that one has changed.
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
    for card in cards:
        before = readings.pop(card.address, None)
        try:
            types = known.setdefault(card.product.key, {})
            functions = _functions(card.address, roots)
            registered = _registered(functions)
            if before and _is_unchanged(before, functions, registered, made, types):
                for type_id in before.types.keys() - types.keys():
                    types[type_id] = before.types[type_id]
                parents, looks = before.parents, before.looks + 1
            else:
                parents, looks = dict(_parents(card.address, functions, made, types)), 0
            plain = {} if parents else _plain(card, roots)
        except (OSError, ValueError) as error:
            unread = f"its driver does not tell how it is divided: {error}; see the kernel's log"
            LOG.warning("GPU %s: %s", card.address, unread)
            by_card[card.address] = vgpu.DividedCard({}, {}, unread)
            continue
        if parents:
            by_card[card.address] = vgpu.DividedCard(_types_of(parents, types, answers), parents)
            if registered.keys() == parents.keys():
                readings[card.address] = Reading(registered, parents, types, looks)
        elif plain:
            # The number of enabled functions; other cards of the product may have more or fewer.
            facts = vgpu.VGPUType(
                vgpu.FUNCTION_TYPE,
                memory_mib=sriov.memory_mib(sysfs.device(card.address, roots), len(plain)),
                per_card=len(plain),
            )
            by_card[card.address] = vgpu.DividedCard({facts.id: facts}, plain)
    return by_card


def with_facts(card: vgpu.DividedCard, facts: Mapping[str, vgpu.VGPUType]) -> vgpu.DividedCard:
    """Return *card* with NVML's *facts* about its types.

    They include types that its driver does not list now. If NVML does not report a fact, that of
    the driver or of the type's name stays.
    """
    types = {
        type_id: _merged(facts[type_id], card.types.get(type_id, facts[type_id]))
        for type_id in facts
        if facts[type_id].per_card or type_id in card.types
    }
    merged = {**card.types, **types}
    return dataclasses.replace(card, types={address: merged[address] for address in sorted(merged)})


def _merged(answer: vgpu.VGPUType, known: vgpu.VGPUType) -> vgpu.VGPUType:
    told_fields = dataclasses.asdict(answer)
    return dataclasses.replace(
        known, **{name: value for name, value in told_fields.items() if value is not None}
    )


def _types_of(
    parents: Mapping[model.PciAddress, vgpu.Parent], known: _Types, answers: Told
) -> dict[str, vgpu.VGPUType]:
    there: set[str] = set()
    for parent in {id(parent): parent for parent in parents.values()}.values():
        there.update(parent.available, parent.made)
    facts = {parent: known.get(parent, vgpu.VGPUType(parent)) for parent in there}
    if answers:
        # On a full card NVIDIA's driver does not name the types of its functions any more.
        typed = (answers.get(a, {}) for a, item in parents.items() if item.kind is vgpu.Kind.TYPED)
        before = next(filter(None, typed), {})
        facts |= {address: known.get(address, before[address]) for address in before}
    return {address: fact for address in sorted(facts) if (fact := facts[address]) is not None}


def _functions(address: model.PciAddress, roots: Roots) -> dict[str, model.PciAddress]:
    """Return a card's own function and its virtual functions, by their sysfs folders.

    :raises OSError: if the kernel does not report them
    """
    card = sysfs.device(address, roots)
    above = card.rpartition("/")[0]
    virtual = sriov.virtual_functions_by_name(card).items()
    return {card: address, **{f"{above}/{name}": function for name, function in virtual}}


def _registered(functions: Mapping[str, model.PciAddress]) -> dict[model.PciAddress, int]:
    """Return the registration of each function that makes mediated devices.

    :raises OSError: if the kernel does not report it
    """
    registrations = {function: mdev.registration(folder) for folder, function in functions.items()}
    return {function: number for function, number in registrations.items() if number is not None}


def _is_unchanged(
    before: Reading,
    functions: Mapping[str, model.PciAddress],
    registered: Mapping[model.PciAddress, int],
    made: _Made,
    known: _Types,
) -> bool:
    """Return whether a card is as it was *before*, judged by one of its functions.

    :raises OSError, ValueError: if that function cannot be read
    """
    if before.registered != registered:
        return False
    if any(made.get(item, {}) != parent.made for item, parent in before.parents.items()):
        return False
    parents = [folder for folder, function in functions.items() if function in registered]
    folder = parents[before.looks % len(parents)]
    function = functions[folder]
    says = _mediating(folder, mdev.types(folder), made.get(function, {}), known)
    return says == before.parents[function]


def _parents(
    address: model.PciAddress,
    functions: Mapping[str, model.PciAddress],
    made: _Made,
    known: _Types,
) -> Iterator[tuple[model.PciAddress, vgpu.Parent]]:
    """Yield the functions of the card that make vGPUs.

    :raises OSError, ValueError: if one of the card's functions cannot be read
    """
    before = None  # neighbours mostly say the same, and then are one object
    for device, function in functions.items():
        profiles = sriov.profiles(device) if function != address else None
        if profiles is not None:
            if profiles is not before:
                for type_id in profiles.names.keys() - known.keys():
                    known[type_id] = sriov.named(type_id, profiles.names[type_id])
            before = profiles
            yield function, profiles.parent
        elif type_ids := mdev.types(device):
            yield function, _mediating(device, type_ids, made.get(function, {}), known)


def _plain(card: model.GPU, roots: Roots) -> dict[model.PciAddress, vgpu.Parent]:
    """Return a card's plain virtual functions, those for which no driver has vGPU types.

    NVIDIA's functions are left out, because they are of no use without a type.

    :raises OSError: if the kernel does not report them
    """
    if card.product.vendor_id == products.NVIDIA:
        return {}
    plain = vgpu.Parent(vgpu.Kind.PLAIN, {vgpu.FUNCTION_TYPE: 1}, {})
    return dict.fromkeys(sriov.virtual_functions(sysfs.device(card.address, roots)), plain)


def _mediating(
    device: str, type_ids: Iterable[str], made: Mapping[str, int], known: _Types
) -> vgpu.Parent:
    """Return a function that makes mediated devices.

    :raises ValueError: if an existing device has an unknown type, or the numbers are implausible
    """
    if odd := sorted(device for device in made if not vgpu.is_type_id(device)):
        raise ValueError(f"{device} has a mediated device of the type {odd[0]!r}")
    available = {}
    for type_id in type_ids:
        if type_id not in known:
            known[type_id] = mdev.facts(device, type_id)
        if known[type_id] is not None:
            available[type_id] = mdev.available(device, type_id)
    return vgpu.Parent(vgpu.Kind.MEDIATED, available, dict(made))
