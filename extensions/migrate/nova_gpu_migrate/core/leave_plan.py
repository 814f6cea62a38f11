# SPDX-License-Identifier: Apache-2.0
"""Whether an instance with GPUs of nova-gpu can be given back to stock Nova, and how."""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nova_gpu.core import device, exception, names
from nova_gpu.core.device import Device
from nova_gpu.core.flavor import gpu_extra_specs, parsers, request
from nova_gpu.core.model import PciAddress
from nova_gpu.core.topology import affinity
from nova_gpu.core.topology.affinity import Policy
from nova_gpu.core.vgpu.vgpu import Slot, VGPUKind, device_uuid
from nova_gpu_migrate.core import adoption_plan
from nova_gpu_migrate.core.former import Former
from nova_gpu_migrate.core.stock_holding import (
    Alias,
    Domain,
    Hardware,
    MdevType,
    Obstacle,
    StockHolding,
    StockInstance,
    StockReturn,
)

# Stock Nova's filters have these words too.
_KEPT = (names.HYPERVISOR, names.HYPERVISOR_TYPE)
_OWN = tuple(word.name for word in gpu_extra_specs.WORDS if word.name not in _KEPT)
# In a request group with or without a suffix
_OF_GROUP = re.compile(
    "resources[a-zA-Z0-9_-]*:(?P<resource_class>[A-Z0-9_]+)|trait[^:]*:(?P<trait>[A-Z0-9_]+)"
)


def judge(
    instance: StockInstance,
    domains: Mapping[str, Domain],
    hardware: Hardware,
    aliases: Collection[Alias],
    types: Collection[MdevType] = (),
    preferred: Collection[str] = (),
    former: Collection[Alias] = (),
) -> StockReturn | None:
    """Return what the instance has by nova-gpu, and what is in the way of giving it back.

    Return ``None`` if it has nothing by nova-gpu, no move that has not ended may bring it something
    back, and its flavor asks for nothing, or for what it has by stock Nova, or it runs without GPUs
    since before nova-gpu, as it will go on to.

    :param aliases: those of the host, with the functions that each gives
    :param types: those of mediated devices that stock Nova will make on this host
    :param preferred: the names of the aliases to give a function by, if several give it
    :param former: the aliases by which it asked before it was taken over, and what they give here
    """
    domain = domains.get(instance.uuid, Domain())
    of_stock = instance.recorded.keys() & hardware.cards_by_function.keys()
    has_others = of_stock or domain.mediated & hardware.mediated.keys()
    runs_without = instance.uuid in domains and _runs_without(instance, domain, hardware)
    asks = _asks(instance) and not (has_others or runs_without)
    if not (instance.counted or instance.slots or instance.moved or asks):
        return None
    kinds = {slot: _kind(slot, hardware) for slot in sorted(instance.slots)}
    mediated = {
        slot: class_at(slot.parent, slot.type_id, types)
        for slot, kind in kinds.items()
        if kind and kind.is_mediated
    }
    virtual = [slot.parent for slot, kind in kinds.items() if kind and kind.is_function]
    others = _others(instance, hardware)
    own_devices = (*sorted(instance.counted), *virtual)
    record = instance.former
    if record and not record.is_before(instance.flavor, instance.extra_specs):
        record = None  # It was resized since.
    restored = _restored(record, own_devices, sorted(others & domain.functions), former)
    counts = collections.Counter(filter(None, mediated.values()))
    fits = record is not None and restored is not None and record.counts == counts
    by_former = restored if fits and restored else {}
    names_by_function = {function: [alias] for function, alias in by_former.items()}
    for function in (*own_devices, *_companions(instance, others, domain, aliases)):
        if function not in names_by_function:
            names_by_function[function] = _giving(function, aliases, preferred)
    functions = {
        function: giving[0] if len(giving) == 1 else None
        for function, giving in names_by_function.items()
    }
    properties: dict[str, str] = {}
    removed: list[str] = []
    if record and fits:
        properties |= record.specs
        removed += record.set
    else:
        own: tuple[Device, ...] = (*instance.counted, *instance.slots)
        classes = set(map(device.resource_class, own))
        removed += (name for name in instance.extra_specs if _is_ours(name, classes))
        properties |= {f"resources:{name}": str(count) for name, count in counts.items()}
    added = {alias for item, alias in functions.items() if alias and item not in by_former}
    if added:
        by_alias = collections.Counter(alias for alias in functions.values() if alias in added)
        specs = {**instance.extra_specs, **properties}
        properties[names.PCI_ALIAS] = _asking(instance, specs, by_alias)
        others_ask = adoption_plan.alias_counts(properties).keys() - added
        by_option = instance.default_policy if not instance.stated_policy else None
        if by_option not in (None, Policy.LEGACY) and not others_ask:
            # Stock Nova has no option for it.
            properties[affinity.EXTRA_SPEC] = str(by_option)
    obstacles = [
        *adoption_plan.of_state(instance),
        *_of_devices(instance, functions, mediated, kinds, domain),
        *_of_aliases(names_by_function),
    ]
    remarks: tuple[str, ...] = ()
    if record:
        as_it_was = (*_remarks(record, aliases), *_regrouped(record, mediated))
        remarks = as_it_was if fits else (_unfit(record),)
    return StockReturn(
        instance,
        functions,
        {slot: name for slot, name in mediated.items() if name},
        properties,
        tuple(name for name in removed if name not in properties),
        tuple(obstacles),
        tuple(sorted((others & domain.functions) - functions.keys() - instance.recorded.keys())),
        record.requests if record and fits else {},
        remarks,
    )


def judge_shelved(
    instance: StockInstance, aliases: Collection[Alias], preferred: Collection[str] = ()
) -> StockReturn | None:
    """Return how a shelved instance is given back; ``None`` if it asks for no GPUs by nova-gpu.

    It gets the words with which it was taken over. Without them, the alias is one that says to
    nova-gpu what its flavor says, but for the number.
    """
    specs = instance.extra_specs
    numbers = {names.GPUS, names.VGPUS}
    try:
        counts = [parsers.parse_count(specs[name], name) for name in numbers & specs.keys()]
    except exception.InvalidExtraSpec:
        return None  # no host of either kind gives it GPUs
    # One that asks by an alias has stayed stock Nova's, whatever else its flavor has.
    if not counts or adoption_plan.alias_counts(specs).keys() & {alias.name for alias in aliases}:
        return None
    record, obstacles = instance.former, [*adoption_plan.of_task(instance)]
    if record and record.is_before(instance.flavor, specs):
        removed = tuple(name for name in record.set if name not in record.specs)
        remarks = tuple(_remarks(record, aliases))
        former = record.specs, removed, obstacles, (), record.requests, remarks
        return StockReturn(instance, {}, {}, *former)
    own = {name: specs[name] for name in specs if name in _OWN and name not in numbers}
    giving = sorted(
        alias.name
        for alias in aliases
        if own == {name: alias.set[name] for name in alias.set if name not in numbers}
        and alias.set.keys() & numbers == specs.keys() & numbers
    )
    giving = [name for name in giving if name in preferred] or giving
    if len(giving) != 1:
        remedy = "name one with --alias" if giving else "unshelve it on a host with nova-gpu"
        names_of = ", ".join(giving) or "none"
        obstacles.append(
            Obstacle(f"aliases of this host that say what it asks for: {names_of}", remedy)
        )
    texts = [specs[names.PCI_ALIAS]] if names.PCI_ALIAS in specs else []
    properties = {
        names.PCI_ALIAS: ",".join([*texts, *(f"{name}:{counts[0]}" for name in giving[:1])])
    }
    classes = (names.RESOURCE_CLASS, names.VGPU_RESOURCE_CLASS)
    removed = tuple(name for name in specs if _is_ours(name, classes))
    return StockReturn(instance, {}, {}, properties, removed, tuple(obstacles))


def back(
    holding: StockHolding,
    domains: Mapping[str, Domain],
    hardware: Hardware,
    aliases: Collection[Alias],
    types: Collection[MdevType],
    former: Collection[Alias],
) -> Sequence[Obstacle]:
    """Return what would be in the way back of an instance, once it were taken over.

    The parameters are those of :func:`judge`.
    """
    instance = dataclasses.replace(
        holding.instance,
        extra_specs=adoption_plan.after(holding.instance.extra_specs, holding.set, holding.unset),
        recorded={},
        counted=frozenset(holding.cards),
        slots=frozenset(holding.slots),
        former=holding.former,
    )
    item = judge(instance, domains, hardware, aliases, types, former=former)
    return item.obstacles if item else ()


def _restored(
    record: Former | None,
    own: Sequence[PciAddress],
    others: Iterable[PciAddress],
    aliases: Iterable[Alias],
) -> dict[PciAddress, str] | None:
    """Return the former alias of each of the instance's functions, ``None`` if they do not fit.

    It may have other functions of the same kind, as after a move.

    :param own: those that it has to have by an alias; *others* are of the same cards
    :param aliases: the former ones, with what each gives on this host
    """
    if record is None:
        return None
    gives = {alias.name: alias.functions for alias in aliases}
    # One that was shelved then had none.
    counts = adoption_plan.alias_counts(record.specs)
    counts = {alias: count for alias, count in counts.items() if alias in record.requests}
    left = collections.Counter(record.functions.values() or counts)
    restored: dict[PciAddress, str] = {}
    candidates = (*own, *others)
    for function, alias in [
        *((item, record.functions.get(item, "")) for item in candidates),
        *((item, alias) for item in candidates for alias in sorted(gives)),
    ]:
        if function not in restored and left[alias] and function in gives.get(alias, ()):
            restored[function] = alias
            left[alias] -= 1
    return None if +left or {*own} - restored.keys() else restored


def _remarks(record: Former, aliases: Iterable[Alias]) -> Iterator[str]:
    """Yield what is not as it was before the takeover, though its words are."""
    words = re.findall(r"([^:,\s]+)\s*:", record.specs.get(names.PCI_ALIAS, ""))
    lacking = {*words}.intersection(record.functions.values()) - {alias.name for alias in aliases}
    if lacking:
        yield (
            f"[pci]alias does not give its devices by {', '.join(sorted(lacking))}, as its flavor "
            "has it again, and Nova moves it by that; add it here and on the controllers"
        )
    if traits := sorted(name for name in record.specs if name.startswith("trait")):
        yield (
            f"its flavor has {', '.join(traits)} again, which stock Nova's providers of mediated "
            "devices have once the operator sets it on them"
        )


def _regrouped(record: Former, mediated: Iterable[Slot]) -> Iterator[str]:
    """Yield that the request groups of its former words say more than its vGPUs now."""
    groups = sum(name.startswith("resources") for name in record.specs)
    if groups > 1 and len({slot.parent for slot in mediated}) < groups:
        yield f"its flavor asks for vGPUs in {groups} groups, and it has them on fewer cards now"


def _unfit(record: Former) -> str:
    """Return that an instance does not get its former words."""
    before = ", ".join(f"{name}='{value}'" for name, value in record.specs.items())
    return f"its former words ({before}) do not fit the devices that it has now"


def _others(instance: StockInstance, hardware: Hardware) -> frozenset[PciAddress]:
    """Return the other functions of the instance's cards, such as their audio."""
    cards = hardware.cards_by_function
    own = (function for function, card in cards.items() if card in instance.counted)
    return frozenset(own) - instance.counted


def _companions(
    instance: StockInstance,
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


def _kind(slot: Slot, hardware: Hardware) -> VGPUKind | None:
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


def _is_ours(name: str, classes: Collection[str]) -> bool:
    """Return whether a property is a word of nova-gpu's, or asks its providers for something.

    :param classes: the resource classes of the instance's devices
    """
    match = _OF_GROUP.fullmatch(name)
    if match is None:
        return name in _OWN
    if trait := match["trait"]:
        return names.is_own_trait(trait)
    resource_class = match["resource_class"]
    return resource_class in classes or names.is_model_class(resource_class)


def _asking(
    instance: StockInstance, extra_specs: Mapping[str, str], counts: Mapping[str, int]
) -> str:
    """Return the flavor's ``pci_passthrough:alias`` with these counts of functions as well.

    The flavor may ask for them already, if nova-compute has written it after an earlier run took
    its change back. What the instance has by an alias is counted in Nova's records.

    :param counts: how many functions it gets, by alias
    """
    texts = extra_specs.get(names.PCI_ALIAS, "").split(",")
    others = [text for text in texts if text.partition(":")[0].strip() not in ("", *counts)]
    own = collections.Counter(instance.recorded.values())
    return ",".join([*others, *(f"{name}:{count + own[name]}" for name, count in counts.items())])


def _asks(instance: StockInstance) -> bool:
    try:
        return bool(request.of(instance.extra_specs).requests)
    except exception.InvalidExtraSpec:
        return True


def _runs_without(instance: StockInstance, domain: Domain, hardware: Hardware) -> bool:
    """Return whether the instance runs without GPUs; one that has stopped may have released its."""
    is_settled = instance.task_state is None and instance.migration is None
    has_any = domain.functions & hardware.cards_by_function.keys() or domain.mediated
    return (
        is_settled and instance.vm_state in adoption_plan.RUNNING and not (has_any or domain.slots)
    )


def _of_devices(
    instance: StockInstance,
    functions: Collection[PciAddress],
    mediated: Mapping[Slot, str | None],
    kinds: Mapping[Slot, VGPUKind | None],
    domain: Domain,
) -> Iterator[Obstacle]:
    resize = "resize it to a flavor without GPUs, or delete it"
    if not (functions or kinds or instance.moved):
        yield Obstacle("its flavor asks for GPUs, and it has none now", f"start it, or {resize}")
    for slot, kind in kinds.items():
        if kind is None or not (kind.is_mediated or kind.is_function):
            yield Obstacle(f"it has {slot}, which stock Nova gives to no instance", resize)
        elif kind.is_mediated and mediated[slot] is None:
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
