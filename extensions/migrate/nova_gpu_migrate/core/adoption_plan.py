# SPDX-License-Identifier: Apache-2.0
"""Whether nova-gpu can take over an instance's GPUs, and the flavor that says the same."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nova_gpu.core import exception, flavor_mismatch, names, unavailability
from nova_gpu.core.flavor import parsers, request, validation
from nova_gpu.core.model import GPU, PciAddress, Product
from nova_gpu.core.placement import group_traits
from nova_gpu.core.topology import affinity, choose, nearness, topology
from nova_gpu.core.topology.affinity import Policy
from nova_gpu.core.vgpu.vgpu import FUNCTION_TYPE, Slot, device_uuid
from nova_gpu_migrate.core.former import Former
from nova_gpu_migrate.core.stock_holding import (
    Alias,
    BetterCards,
    Domain,
    Hardware,
    Obstacle,
    StockDelivery,
    StockHolding,
    StockInstance,
    StockMdev,
    StockProvider,
)

# The states of an instance that a restart of nova-compute and its records' change do not touch
# (nova.compute.vm_states)
RUNNING = ("active", "paused")
SETTLED = (*RUNNING, "stopped")

# Words of flavors that stock Nova's own filter compares
_OF_BOTH = {names.HYPERVISOR, names.HYPERVISOR_TYPE}
_WAIT = "wait until it has ended, or end it, and look again"
# The longest path first
_PATHS = (
    *(nearness.Nearness.UNKNOWN, nearness.Nearness.ACROSS_NODES, nearness.Nearness.SAME_NODE),
    *(nearness.Nearness.SAME_ROOT, nearness.Nearness.SAME_SWITCH),
)


def judge(
    instance: StockInstance, domains: Mapping[str, Domain], hardware: Hardware
) -> StockHolding | None:
    """Return what the instance has by stock Nova and what is in the way of taking it over.

    Return ``None`` if it has no GPU of this host by stock Nova, and lacks none. A takeover that has
    begun may have left no more than some of Nova's records: the cards are those that it has
    counted, too.

    :param domains: all domains of the host by uuid, those of other programs included
    """
    domain = domains.get(instance.uuid, Domain())
    of_gpus = hardware.cards_by_function
    ours = instance.counted | {slot.parent for slot in instance.slots}
    functions = {
        function
        for function in instance.recorded.keys() | domain.functions
        if function in of_gpus
        and (function in instance.recorded or not {function, of_gpus[function]} & ours)
    }
    whole_functions = {function for function in functions if not _is_virtual(function, hardware)}
    # Of a takeover that has begun Nova's records are left.
    virtual = {slot.parent for slot in instance.slots} - hardware.gpus.keys()
    is_begun = any(
        {item, of_gpus.get(item)} & instance.counted or item in virtual
        for item in instance.recorded
    )
    counted = instance.counted if is_begun else frozenset()
    missing = sorted(counted - hardware.gpus.keys())
    own = {of_gpus[function] for function in whole_functions} | (counted & hardware.gpus.keys())
    cards = tuple(sorted(own))
    mediated = {
        uuid: hardware.mediated[uuid] for uuid in domain.mediated & hardware.mediated.keys()
    }
    slots = {
        **_mediated_slots(instance, domain, mediated),
        **function_slots(functions - whole_functions, hardware),
    }
    if is_begun:
        slots |= {slot: of_gpus.get(slot.parent, slot.parent) for slot in instance.slots}
    absence = [*_of_absent_vgpus(instance, domain)]
    if not (functions or cards or slots or absence):
        return None
    aliases = {instance.recorded.get(function) for function in functions} - {None}
    stock = [hardware.providers.get(item.parent, StockProvider("")) for item in mediated.values()]
    left, removed = _without(instance, aliases, stock if slots else ())
    properties = {**words([hardware.gpus[card].product for card in cards], slots), **left}
    properties |= _policy(instance, aliases, left)
    obstacles = [
        *of_state(instance),
        *absence,
        # Those of an instance that is being moved are half there, half here.
        *(() if instance.migration else _of_records(instance, domain, functions, hardware)),
        *_of_cards(instance.uuid, whole_functions, cards, domains, hardware),
        *_of_companions(instance, whole_functions, hardware),
        *_of_virtual_functions(functions - whole_functions - {s.parent for s in slots}, hardware),
        *_of_slots(instance.uuid, slots, domains, hardware),
        *_of_products("cards", cards, hardware),
        *_of_products("vGPUs", set(slots.values()), hardware),
        *_of_counted(instance, missing, cards, slots, is_begun=is_begun),
    ]
    specs = after(instance.extra_specs, properties, removed)
    if not obstacles:
        obstacles += [*_of_flavor(specs, cards, slots, hardware), *_of_aliases(instance, left)]
    return StockHolding(
        instance,
        tuple(
            way
            for way, has in ((StockDelivery.ALIAS, functions), (StockDelivery.MEDIATED, mediated))
            if has
        ),
        cards,
        dict(sorted(slots.items())),
        frozenset(functions & instance.recorded.keys()),
        frozenset(filter(None, aliases)),
        properties,
        removed,
        tuple(dict.fromkeys(obstacles)),
        _choice(cards, domains, hardware),
        _former(instance, functions, properties, removed),
        (
            *_differences(instance, aliases, properties, removed),
            *_additions(cards, domain, hardware),
        ),
    )


def judge_shelved(instance: StockInstance, aliases: Collection[Alias]) -> StockHolding | None:
    """Return how a shelved instance is taken over; ``None`` if it asks by none of *aliases*."""
    counts = alias_counts(instance.extra_specs)
    own = [alias for alias in aliases if alias.name in counts]
    if not own:
        return None
    obstacles = [*of_task(instance)]
    if any(alias.set != own[0].set for alias in own) or not own[0].set:
        by = ", ".join(alias.name for alias in own)
        obstacles.append(
            Obstacle(f"its flavor asks for GPUs of several products, by {by}", "unshelve it")
        )
    properties = dict(own[0].set)
    for name in properties.keys() & {names.GPUS, names.VGPUS}:
        properties[name] = f"= {sum(counts[alias.name] for alias in own)}"
    others = {*filter(validation.is_own, instance.extra_specs)} - properties.keys() - _OF_BOTH
    if others:
        # There is no device to hold them against.
        words_of = ", ".join(sorted(others))
        obstacles.append(Obstacle(f"its flavor has words of nova-gpu's: {words_of}", "unshelve it"))
    known = {alias.name for alias in own}
    left, removed = _without(instance, known, ())
    properties |= left | _policy(instance, known, left)
    specs = instance.extra_specs
    before = {name: specs[name] for name in (*properties, *removed) if name in specs}
    requests = {alias: instance.requests[alias] for alias in instance.requests if alias in known}
    return StockHolding(
        instance,
        (StockDelivery.ALIAS,),
        (),
        {},
        frozenset(),
        frozenset(known),
        properties,
        removed,
        obstacles,
        former=Former(instance.flavor, properties, before, requests, {}),
    )


def alias_counts(extra_specs: Mapping[str, str]) -> dict[str, int]:
    """Return how many devices a flavor asks for by each alias: ``a2:1,nic:2,a2:1``."""
    counts: dict[str, int] = {}
    for text in extra_specs.get(names.PCI_ALIAS, "").split(","):
        name, _, count = (part.strip() for part in text.partition(":"))
        if count.isdigit():
            counts[name] = counts.get(name, 0) + int(count)
    return counts


def after(
    extra_specs: Mapping[str, str], properties: Mapping[str, str], removed: Collection[str]
) -> dict[str, str]:
    """Return a flavor's properties with *properties*, and without those *removed*."""
    specs = {**extra_specs, **properties}
    return {name: value for name, value in specs.items() if name not in removed}


def _former(
    instance: StockInstance,
    functions: Iterable[PciAddress],
    properties: Mapping[str, str],
    removed: Collection[str],
) -> Former | None:
    """Return what is kept of the instance: what an earlier run has kept, if it has changed more.

    Return ``None`` if its flavor asks for nothing of stock Nova.
    """
    specs, record = instance.extra_specs, instance.former
    if record and record.is_before(instance.flavor, specs):
        return record
    before = {name: specs[name] for name in (*properties, *removed) if name in specs}
    if not (removed or names.PCI_ALIAS in properties):
        return None
    of_functions = {item: instance.recorded.get(item) for item in sorted(functions)}
    aliases = {function: alias for function, alias in of_functions.items() if alias}
    requests = {
        alias: request for alias, request in instance.requests.items() if alias in aliases.values()
    }
    return Former(instance.flavor, properties, before, requests, aliases)


def _policy(
    instance: StockInstance, aliases: Collection[str | None], left: Mapping[str, str]
) -> dict[str, str]:
    """Return the property that states the affinity that *aliases* have had for its guest.

    Return none if nova-gpu has the same without, if its flavor or image states one, or if the
    flavor still asks for other devices, which would have it as well.
    """
    policies = _policies(instance, aliases) - {instance.default_policy}
    is_free = instance.default_policy and not instance.stated_policy and names.PCI_ALIAS not in left
    return {affinity.EXTRA_SPEC: min(policies)} if is_free and len(policies) == 1 else {}


def _policies(instance: StockInstance, aliases: Collection[str | None]) -> set[str]:
    requests = (request for alias, request in instance.requests.items() if alias in aliases)
    return {request.numa_policy or Policy.LEGACY for request in requests}


def _differences(
    instance: StockInstance,
    aliases: Collection[str | None],
    properties: Mapping[str, str],
    removed: Collection[str],
) -> Iterator[str]:
    """Yield what the flavor says to stock Nova, and not to nova-gpu in its words."""
    stated = properties.get(affinity.EXTRA_SPEC) or instance.stated_policy
    own = stated or instance.default_policy
    others = sorted(_policies(instance, aliases) - {own})
    if others and own:
        yield (
            "when it starts on another host, or new ones with this flavor do, its cards are on the "
            f"NUMA nodes of its guest by the policy {own}, and not by {', '.join(others)} as by "
            f"its alias: {affinity.EXTRA_SPEC} of the flavor changes that"
        )
    groups = {name.partition(":")[0] for name in removed if name.startswith("resources")}
    if len(groups) > 1 and instance.extra_specs.get("group_policy") == "isolate":
        yield (
            "when it moves, its vGPUs may be on one card: nova-gpu counts all cards of a product "
            "as one provider, which group_policy=isolate does not part"
        )


def _additions(cards: Iterable[PciAddress], domain: Domain, hardware: Hardware) -> Iterator[str]:
    """Yield which functions its guest gets at its next start, besides those that it has."""
    functions = (item for card in cards for item in hardware.gpus[card].functions)
    if others := sorted({*functions} - domain.functions):
        yield (
            f"the next start gives its guest {', '.join(map(str, others))} as well, as functions "
            "of its cards, and its devices may have other addresses in the guest"
        )


def _is_virtual(function: PciAddress, hardware: Hardware) -> bool:
    return function not in hardware.gpus[hardware.cards_by_function[function]].functions


def _mediated_slots(
    instance: StockInstance, domain: Domain, mediated: Mapping[str, StockMdev]
) -> dict[Slot, PciAddress]:
    """Return the slots of mediated devices by stock Nova, each with its card.

    A device that nova-gpu has made, before the instance was given back, has its slot again.
    """
    former = {device_uuid(instance.uuid, slot): slot for slot in domain.slots}
    slots = {
        former.get(uuid) or Slot.of_device(item.parent, item.type_id, uuid): item.card
        for uuid, item in mediated.items()
    }
    return {slot: card for slot, card in slots.items() if slot not in instance.slots}


def function_slots(functions: Iterable[PciAddress], hardware: Hardware) -> dict[Slot, PciAddress]:
    """Return the slots of virtual functions that have a vGPU to give, each with its card."""
    slots = {}
    for function in functions:
        card = hardware.cards_by_function[function]
        parent = hardware.parts[card].parents.get(function) if card in hardware.parts else None
        if parent is not None and parent.kind.is_plain:
            slots[Slot(function, next(iter(parent.available), FUNCTION_TYPE), 0)] = card
        elif parent is not None and len(parent.made) == 1:
            slots[Slot(function, next(iter(parent.made)), 0)] = card
    return slots


def words(products: Sequence[Product], slots: Iterable[Slot]) -> dict[str, str]:
    """Return the properties by which a flavor asks nova-gpu for these cards and vGPUs.

    The cards of a flavor are of one model. A model without a name is left out.
    """
    properties = {}
    if products:
        properties[names.GPUS] = f"= {len(products)}"
        if model := _stated(products[0].name):
            properties[names.MODEL] = model
    if types := [slot.type_id for slot in slots]:
        properties[names.VGPUS] = f"= {len(types)}"
        properties[names.VGPU_TYPE] = f"s== {types[0]}"
    return properties


def _stated(model: str | None) -> str | None:
    """Return the condition on a model's name, in its normal form if its text has other signs."""
    for name in (model, names.word(model)):
        if name:
            with contextlib.suppress(exception.InvalidExtraSpec):
                parsers.parse_name(names.MODEL, f"s== {name}")
                return f"s== {name}"
    return None


def _without(
    instance: StockInstance, aliases: Collection[str | None], stock: Collection[StockProvider]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return how the flavor ceases to ask stock Nova: properties to replace, and to remove.

    A value of ``pci_passthrough:alias`` is ``a2:1,nic:2``; what is not in *aliases* stays.

    :param stock: the providers that its mediated devices are counted on
    """
    extra_specs, replaced, removed = instance.extra_specs, {}, []
    if aliases and names.PCI_ALIAS in extra_specs:
        texts = [text.strip() for text in extra_specs[names.PCI_ALIAS].split(",")]
        names_by_text = {text: text.partition(":")[0].strip() for text in texts}
        own, unasked = {*aliases}, {*instance.recorded.values()} - {*names_by_text.values()}
        if unasked and unasked <= own:
            # An alias was renamed, in the flavor too. Nova has no record by its new name.
            own |= {*names_by_text.values()} - {*instance.recorded.values()}
        others = [text for text in texts if names_by_text[text] not in own]
        if others:
            replaced[names.PCI_ALIAS] = ",".join(others)
        else:
            removed.append(names.PCI_ALIAS)
    classes = frozenset[str]().union(*(item.resource_classes for item in stock))
    traits = frozenset[str]().union(*(item.traits for item in stock))
    for name in extra_specs:
        word, _, of_stock = name.partition(":")
        # In a request group with or without a suffix
        if (word.startswith("resources") and of_stock in classes) or (
            word.startswith("trait") and of_stock in traits
        ):
            removed.append(name)
    return replaced, tuple(removed)


def _of_flavor(
    extra_specs: Mapping[str, str],
    cards: Iterable[PciAddress],
    slots: Mapping[Slot, PciAddress],
    hardware: Hardware,
) -> Iterator[Obstacle]:
    """Yield why nova-gpu would not start an instance with these GPUs and the resulting flavor."""
    flavor = request.of(extra_specs)
    gpus = [hardware.gpus[card] for card in cards]
    held = [
        flavor_mismatch.HeldGPUs(
            1,
            gpu.product.architecture,
            functools.partial(group_traits.of_group, gpu.product, names.QEMU, ()),
            gpu.product.name,
            gpu.product.memory_mib,
            gpu.numa_node,
        )
        for gpu in gpus
    ]
    types = [hardware.parts[card].types[slot.type_id] for slot, card in slots.items()]
    try:
        flavor.check()
        # Nova's own filter has compared the hypervisor.
        whole = flavor.whole and dataclasses.replace(flavor.whole, hypervisor=None)
        reason = (
            flavor_mismatch.gpu_mismatch(whole, held, None)
            or (whole and flavor_mismatch.other_product(whole, held))
            or flavor_mismatch.vgpu_mismatch(flavor, types)
        )
    except exception.InvalidExtraSpec as error:
        reason = str(error)
    if reason:
        yield Obstacle(
            f"with nova-gpu's words its flavor would not fit what it has: {reason}",
            "resize it to a flavor without properties of nova-gpu's",
        )


def _of_aliases(instance: StockInstance, left: Mapping[str, str]) -> Iterator[Obstacle]:
    """Yield that aliases of GPUs and of other devices were renamed, which nothing tells apart."""
    aliases = {text.partition(":")[0] for text in left.get(names.PCI_ALIAS, "").split(",")} - {""}
    recorded = {*instance.recorded.values()}
    # An older record has no alias.
    if (unknown := sorted(aliases - recorded)) and None not in recorded:
        yield Obstacle(
            f"its flavor asks by {', '.join(unknown)}, by which Nova counts nothing for it",
            "resize it to a flavor with the names that its devices have in [pci]alias now",
        )


def of_state(instance: StockInstance) -> Iterator[Obstacle]:
    """Yield what the instance is doing, or its state, if its records must not change now."""
    if instance.elsewhere is not None and instance.migration is None:
        yield Obstacle(
            f"it is on the host {instance.elsewhere}, and an evacuation has left records here",
            "start nova-compute here with the driver it had, which removes them",
        )
    if instance.migration is not None:
        yield Obstacle(f"a migration of it is {instance.migration}", _WAIT)
    yield from of_task(instance)
    if instance.vm_state not in SETTLED:
        yield Obstacle(
            f"its state is {instance.vm_state}",
            f"bring it into one of {', '.join(SETTLED)}, or delete it",
        )


def of_task(instance: StockInstance) -> Iterator[Obstacle]:
    """Yield the task that the instance has."""
    if instance.task_state is not None:
        yield Obstacle(f"it has the task {instance.task_state}", _WAIT)


def _of_absent_vgpus(instance: StockInstance, domain: Domain) -> Iterator[Obstacle]:
    """Yield that the instance should have vGPUs of stock Nova and has none.

    Stock Nova has started such a guest when it has reverted a resize on the same host
    (LibvirtDriver.finish_revert_migration).
    """
    if instance.migration is not None:
        return  # the domain may be of the former flavor
    specs = instance.extra_specs
    asks = request.of(specs).asks_for_vgpus and not any(map(validation.is_own, specs))
    if asks and not (instance.slots or instance.recorded or domain.mediated or domain.functions):
        yield Obstacle(
            "its flavor asks for vGPUs, and its domain has none",
            "shelve and unshelve it, or let stock Nova's driver reboot it hard",
        )


def _of_records(
    instance: StockInstance, domain: Domain, functions: Collection[PciAddress], hardware: Hardware
) -> Iterator[Obstacle]:
    of_gpus = hardware.cards_by_function
    known = {of_gpus[function] for function in functions if function in instance.recorded}
    ours = instance.counted | {slot.parent for slot in instance.slots}
    for function in sorted(functions):
        if function not in domain.functions:
            yield Obstacle(
                f"Nova's database counts {function} for it, and its domain has no such device",
                "reboot it hard, or see why virsh dumpxml lacks the device",
            )
        elif function not in instance.recorded:
            if of_gpus[function] in known and not _is_virtual(function, hardware):
                continue  # a companion: nova-gpu gives all functions of a card
            yield Obstacle(
                f"its domain has {function}, which Nova's database does not count for it",
                "take the device out of the domain (virsh detach-device)",
            )
        elif (
            instance.recorded[function] is None
            # Of what was taken over in part only this record is left.
            and not {function, of_gpus[function]} & ours
        ):
            yield Obstacle(
                f"Nova's record of {function} does not say by which alias it has the device, as "
                "those of Nova before 2023.1",
                "resize it, or migrate it cold, so that Nova makes a new record",
            )
    aliases = {instance.recorded.get(function) for function in functions} - {None}
    for function, alias in sorted(instance.recorded.items()):
        if alias in aliases and function not in of_gpus:
            yield Obstacle(
                f"the alias {alias} has given it {function} too, which nova-gpu does not offer",
                "resize it to a flavor with an alias for that device alone",
            )
    for uuid in sorted(domain.mediated - hardware.mediated.keys()):
        yield Obstacle(
            f"its domain has the mediated device {uuid}, which this host does not have",
            "reboot it hard",
        )


def _of_counted(
    instance: StockInstance,
    missing: Iterable[PciAddress],
    cards: Collection[PciAddress],
    slots: Collection[Slot],
    *,
    is_begun: bool,
) -> Iterator[Obstacle]:
    for card in missing:
        yield Obstacle(
            f"nova-gpu counts {card} for it, which this host does not have", "see nova-gpu verify"
        )
    others = (instance.counted - {*cards}) | (instance.slots - {*slots})
    if (cards or slots) and not is_begun and others:
        yield Obstacle(
            "it has GPUs by nova-gpu as well, and a flavor asks for cards of one kind",
            "resize it to a flavor that asks nova-gpu for all of them",
        )


def _of_cards(
    own: str,
    functions: Collection[PciAddress],
    cards: Iterable[PciAddress],
    domains: Mapping[str, Domain],
    hardware: Hardware,
) -> Iterator[Obstacle]:
    for card in cards:
        if reason := unavailability.for_all(hardware.reasons.get(card, ())):
            yield Obstacle(f"{card} cannot be given to guests: {reason.reason}", reason.remedy)
        if card in hardware.parts:
            yield Obstacle(
                f"nova-gpu would offer {card} in parts, as vGPUs",
                "let [gpu]vgpu_types name none of its types, so that it is offered whole",
            )
        for function in hardware.gpus[card].functions:
            users = _users(function, domains) - {own}
            if users:
                yield Obstacle(
                    f"{function} of its card {card} is in the domain {', '.join(sorted(users))}",
                    "take that function out of the other domain",
                )


def _of_companions(
    instance: StockInstance, functions: Collection[PciAddress], hardware: Hardware
) -> Iterator[Obstacle]:
    for function in sorted(functions):
        card = hardware.cards_by_function[function]
        if card not in functions and card not in instance.counted:
            yield Obstacle(
                f"it has {function} without {card}, the first function of the card",
                "resize it to a flavor with an alias of both, or of neither",
            )


def _of_virtual_functions(
    functions: Iterable[PciAddress], hardware: Hardware
) -> Iterator[Obstacle]:
    """Yield why virtual functions without a slot stay stock Nova's."""
    for function in sorted(functions):
        card = hardware.cards_by_function[function]
        yield Obstacle(
            f"{function} is a virtual function of {card} that nova-gpu would not offer",
            f"see what nova-gpu shadow says of {card}, or resize it to a flavor without it",
        )


def _of_slots(
    own: str, slots: Mapping[Slot, PciAddress], domains: Mapping[str, Domain], hardware: Hardware
) -> Iterator[Obstacle]:
    if len(types := {slot.type_id for slot in slots}) > 1:
        yield Obstacle(
            f"it has vGPUs of several types, {', '.join(sorted(types))}, and a flavor asks "
            "nova-gpu for vGPUs of one",
            "resize it to a flavor with vGPUs of one type",
        )
    for slot, card in slots.items():
        divided = hardware.parts.get(card)
        parent = divided.parents.get(slot.parent) if divided else None
        users = _users(slot.parent, domains)
        if divided is None or parent is None:
            yield Obstacle(
                f"nova-gpu would offer no vGPUs at {slot.parent}",
                f"see what nova-gpu shadow says of {card}, or resize it to a flavor with vgpus",
            )
            continue
        if slot.type_id not in divided.types:
            yield Obstacle(
                f"nova-gpu would not offer its type {slot.type_id}",
                "name it in [gpu]vgpu_types, or resize it to a flavor with vgpus and vgpu_type",
            )
        if parent.kind.is_mediated:
            uuid = device_uuid(own, slot)
            users |= {other for other, domain in domains.items() if uuid in domain.mediated}
        if users - {own}:
            yield Obstacle(
                f"{slot} is in the domain {', '.join(sorted(users - {own}))} too",
                "take it out of the other domain",
            )


def _of_products(
    what: str, cards: Collection[PciAddress], hardware: Hardware
) -> Iterator[Obstacle]:
    products = {hardware.gpus[card].product.key for card in cards}
    if len(products) > 1:
        yield Obstacle(
            f"it has {what} of several products, {', '.join(sorted(products))}, and a flavor asks "
            f"nova-gpu for {what} of one",
            f"resize it to a flavor with {what} of one product",
        )


def _users(function: PciAddress, domains: Mapping[str, Domain]) -> set[str]:
    return {uuid for uuid, domain in domains.items() if function in domain.functions}


def _choice(
    cards: Sequence[PciAddress], domains: Mapping[str, Domain], hardware: Hardware
) -> BetterCards | None:
    """Return nova-gpu's choice among these *cards* and the free ones of their product.

    Return ``None`` if the cards of that choice are on as many islands of each level.
    """
    products = {hardware.gpus[card].product.key for card in cards}
    if len(products) != 1:
        return None
    taken = frozenset[PciAddress]().union(*(domain.functions for domain in domains.values()))
    alike = {
        card: gpu
        for card, gpu in hardware.gpus.items()
        if gpu.product.key in products
        and (card in cards or not (taken & set(gpu.functions) or hardware.reasons.get(card)))
    }
    places = topology.places(alike.values())
    best = choose.choose(alike.keys(), len(cards), places)
    if _islands(best, places) == _islands(cards, places):
        return None
    paths = (_longest([alike[card] for card in chosen]) for chosen in (cards, best))
    return BetterCards(best, (next(paths), next(paths)))


def _islands(
    cards: Iterable[PciAddress], places: Mapping[PciAddress, topology.Place]
) -> tuple[int, ...]:
    """Return on how many islands of each level the cards are."""
    levels = zip(*(places[card] for card in cards), strict=True)
    return tuple(
        len({number for number in level if number != topology.ALONE}) + level.count(topology.ALONE)
        for level in levels
    )


def _longest(gpus: Sequence[GPU]) -> str:
    paths = {nearness.between(one, other) for one, other in itertools.combinations(gpus, 2)}
    return next((str(path) for path in _PATHS if path in paths), min(paths, default=""))
