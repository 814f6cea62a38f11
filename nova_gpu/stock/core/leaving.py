# SPDX-License-Identifier: Apache-2.0
"""Whether an instance with GPUs of nova-gpu can be given back to stock Nova, and how."""

from __future__ import annotations

import collections
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nova_gpu.core import device, exception, names
from nova_gpu.core.device import Device
from nova_gpu.core.flavor import extra_spec, request
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Kind, Slot, device_uuid
from nova_gpu.stock.core import takeover
from nova_gpu.stock.core.holding import (
    Alias,
    Domain,
    Hardware,
    Instance,
    Leaving,
    MdevType,
    Obstacle,
)

# Stock Nova's filters have these words too.
_KEPT = (names.HYPERVISOR, names.HYPERVISOR_TYPE)
_VIRTUAL_FUNCTIONS = (Kind.TYPED, Kind.PLAIN)
_OWN = tuple(word.name for word in extra_spec.WORDS if word.name not in _KEPT)
# In a request group with or without a suffix
_OF_GROUP = re.compile(
    "resources[a-zA-Z0-9_-]*:(?P<resource_class>[A-Z0-9_]+)|trait.*:CUSTOM_GPU(_.*)?"
)


def judge(
    instance: Instance,
    domains: Mapping[str, Domain],
    hardware: Hardware,
    aliases: Collection[Alias],
    types: Collection[MdevType] = (),
    preferred: Collection[str] = (),
) -> Leaving | None:
    """Return what the instance has by nova-gpu, and what is in the way of giving it back.

    Return ``None`` if it has nothing by nova-gpu and its flavor asks for nothing.

    :param aliases: those of the host, with the functions that each gives
    :param types: those of mediated devices that stock Nova will make on this host
    :param preferred: the names of the aliases to give a function by, if several give it
    """
    if not (instance.counted or instance.slots or _asks(instance)):
        return None
    kinds = {slot: _kind(slot, hardware) for slot in sorted(instance.slots)}
    mediated = {
        slot: class_at(slot.parent, slot.type_id, types)
        for slot, kind in kinds.items()
        if kind is Kind.MEDIATED
    }
    virtual = (slot.parent for slot, kind in kinds.items() if kind in _VIRTUAL_FUNCTIONS)
    domain = domains.get(instance.uuid, Domain())
    others = _others(instance, hardware)
    companions = _companions(instance, others, domain, aliases)
    names_by_function = {
        function: _giving(function, aliases, preferred)
        for function in (*sorted(instance.counted), *virtual, *companions)
    }
    functions = {
        function: giving[0] if len(giving) == 1 else None
        for function, giving in names_by_function.items()
    }
    own_devices: tuple[Device, ...] = (*instance.counted, *instance.slots)
    classes = set(map(device.resource_class, own_devices))
    removed = [name for name in instance.extra_specs if name in _OWN or _asks_for(classes, name)]
    properties = {}
    if by_alias := collections.Counter(filter(None, functions.values())):
        properties[names.PCI_ALIAS] = _asking(instance, by_alias)
    counts = collections.Counter(filter(None, mediated.values()))
    properties |= {f"resources:{name}": str(count) for name, count in counts.items()}
    obstacles = [
        *takeover.of_state(instance),
        *_of_devices(instance, functions, mediated, kinds, domain),
        *_of_aliases(names_by_function),
    ]
    return Leaving(
        instance,
        functions,
        {slot: name for slot, name in mediated.items() if name},
        properties,
        tuple(name for name in removed if name not in properties),
        tuple(obstacles),
        tuple(sorted((others & domain.functions) - functions.keys() - instance.recorded.keys())),
    )


def _others(instance: Instance, hardware: Hardware) -> frozenset[PciAddress]:
    """Return the other functions of the instance's cards, such as their audio."""
    cards = hardware.cards_by_function
    own = (function for function, card in cards.items() if card in instance.counted)
    return frozenset(own) - instance.counted


def _companions(
    instance: Instance,
    others: Collection[PciAddress],
    domain: Domain,
    aliases: Iterable[Alias],
) -> list[PciAddress]:
    """Return those of *others* that its guest has and stock Nova would give away.

    Those come too of which a takeover that has begun has left Nova's record.
    """
    candidates = {item for alias in aliases for item in alias.companions} & domain.functions
    records = {item for item, alias in instance.recorded.items() if alias is None}
    return sorted((candidates - instance.recorded.keys() | records).intersection(others))


def _giving(
    function: PciAddress, aliases: Iterable[Alias], preferred: Collection[str]
) -> list[str]:
    """Return the names of the aliases that give *function*, only *preferred* ones if some do."""
    giving = sorted(item.name for item in aliases if function in item.functions)
    return [name for name in giving if name in preferred] or giving


def _kind(slot: Slot, hardware: Hardware) -> Kind | None:
    """Return the form of the vGPU at *slot*, ``None`` if this host does not have its function."""
    parents = (card.parents.get(slot.parent) for card in hardware.parts.values())
    return next((parent.kind for parent in parents if parent is not None), None)


def class_at(parent: PciAddress, type_id: str, types: Iterable[MdevType]) -> str | None:
    """Return the resource class of stock Nova's vGPUs of the type at the function *parent*.

    Return ``None`` if Nova makes none of that type there.
    """
    known = tuple(types)
    others = [item for item in known if not item.addresses][:1]
    at = [item for item in known if str(parent) in item.addresses] or others
    return next((item.resource_class for item in at if item.type_id == type_id), None)


def _asks_for(classes: Collection[str], name: str) -> bool:
    """Return whether a property asks Placement for one of *classes*, or has a trait of nova-gpu."""
    match = _OF_GROUP.fullmatch(name)
    if match is None:
        return False
    resource_class = match["resource_class"] or ""
    return resource_class in ("", *classes) or names.is_model_class(resource_class)


def _asking(instance: Instance, counts: Mapping[str, int]) -> str:
    """Return the flavor's ``pci_passthrough:alias`` with these counts of functions as well.

    The flavor may ask for them already, if nova-compute has written it after an earlier run took
    its change back. What the instance has by an alias is counted in Nova's records.

    :param counts: how many functions it gets, by alias
    """
    texts = instance.extra_specs.get(names.PCI_ALIAS, "").split(",")
    others = [text for text in texts if text.partition(":")[0].strip() not in ("", *counts)]
    own = collections.Counter(instance.recorded.values())
    return ",".join([*others, *(f"{name}:{count + own[name]}" for name, count in counts.items())])


def _asks(instance: Instance) -> bool:
    try:
        return bool(request.of(instance.extra_specs).requests)
    except exception.InvalidExtraSpec:
        return True


def _of_devices(
    instance: Instance,
    functions: Collection[PciAddress],
    mediated: Mapping[Slot, str | None],
    kinds: Mapping[Slot, Kind | None],
    domain: Domain,
) -> Iterator[Obstacle]:
    resize = "resize it to a flavor without GPUs, or delete it"
    if not functions and not kinds:
        yield Obstacle("its flavor asks for GPUs, and it has none now", f"start it, or {resize}")
    for slot, kind in kinds.items():
        if kind not in (Kind.MEDIATED, *_VIRTUAL_FUNCTIONS):
            yield Obstacle(f"it has {slot}, which stock Nova gives to no instance", resize)
        elif kind is Kind.MEDIATED and mediated[slot] is None:
            yield Obstacle(
                f"[devices]enabled_mdev_types gives no vGPUs of {slot.type_id} at {slot.parent}",
                f"name it there, and {slot.parent} in [mdev_{slot.type_id}]device_addresses",
            )
    named = {device_uuid(instance.uuid, slot): slot for slot in mediated}
    lacking = [str(card) for card in functions if card not in domain.functions]
    lacking += [str(named[uuid]) for uuid in named.keys() - domain.mediated]
    for dev in lacking:
        yield Obstacle(
            f"Nova's database counts {dev} for it, and its domain has no such device",
            "reboot it hard; in containers stock Nova gives no cards",
        )


def _of_aliases(names_by_function: Mapping[PciAddress, Sequence[str]]) -> Iterator[Obstacle]:
    for giving in sorted({tuple(giving) for giving in names_by_function.values()}):
        functions = ", ".join(
            str(function) for function, own in names_by_function.items() if tuple(own) == giving
        )
        if not giving:
            yield Obstacle(
                f"no [pci]alias of this host gives {functions}, by all that it says",
                "add one on this host and on nova-api's and nova-scheduler's",
            )
        elif len(giving) > 1:
            yield Obstacle(
                f"several aliases give {functions}: {', '.join(giving)}", "name one with --alias"
            )
