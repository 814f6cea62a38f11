# SPDX-License-Identifier: Apache-2.0
"""Whether an instance with GPUs of nova-gpu can be given back to stock Nova, and by which alias."""

from __future__ import annotations

import collections
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

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
) -> Leaving | None:
    """Return what the instance has by nova-gpu, and what is in the way of giving it back.

    Return ``None`` if it has nothing by nova-gpu and its flavor asks for nothing.

    :param aliases: those that an operator allows, with the host's cards that each gives
    :param types: those of mediated devices that stock Nova will make on this host
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
    functions = (*sorted(instance.counted), *virtual)
    domain = domains.get(instance.uuid, Domain())
    giving = sorted(item.name for item in aliases if functions and {*functions} <= {*item.cards})
    alias = giving[0] if len(giving) == 1 else None
    own_devices: tuple[Device, ...] = (*instance.counted, *instance.slots)
    classes = set(map(device.resource_class, own_devices))
    removed = [name for name in instance.extra_specs if name in _OWN or _asks_for(classes, name)]
    properties = {}
    if alias:
        properties[names.PCI_ALIAS] = _asking(instance, alias, len(functions))
    counts = collections.Counter(filter(None, mediated.values()))
    properties |= {f"resources:{name}": str(count) for name, count in counts.items()}
    obstacles = [
        *takeover.of_state(instance),
        *_of_devices(instance, functions, mediated, kinds, domain),
        *_of_aliases(functions, giving),
    ]
    return Leaving(
        instance,
        functions,
        {slot: name for slot, name in mediated.items() if name},
        alias,
        properties,
        tuple(name for name in removed if name not in properties),
        tuple(obstacles),
    )


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


def _asking(instance: Instance, alias: str, count: int) -> str:
    """Return the flavor's ``pci_passthrough:alias`` with *count* functions by *alias* as well.

    The flavor may ask for them already, if nova-compute has written it after an earlier run took
    its change back. What the instance has by the alias is counted in Nova's records.
    """
    texts = instance.extra_specs.get(names.PCI_ALIAS, "").split(",")
    others = [text for text in texts if text.partition(":")[0].strip() not in ("", alias)]
    own = [function for function, by in instance.recorded.items() if by == alias]
    return ",".join([*others, f"{alias}:{count + len(own)}"])


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


def _of_aliases(cards: Collection[PciAddress], giving: Collection[str]) -> Iterator[Obstacle]:
    if cards and not giving:
        yield Obstacle(
            "no [pci]alias of this host gives all of its cards, by their PCI ids and device_type",
            "add one for their product on this host and on nova-api's and nova-scheduler's",
        )
    elif len(giving) > 1:
        yield Obstacle(
            f"several aliases give its cards, {', '.join(giving)}", "name one with --alias"
        )
