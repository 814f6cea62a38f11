# SPDX-License-Identifier: Apache-2.0
"""Whether nova-gpu can take over an instance's GPUs, and the flavor that says the same."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from nova_gpu.core import availability, exception, names
from nova_gpu.core.flavor import parsers
from nova_gpu.core.model import GPU, PciAddress, Product
from nova_gpu.core.topology import choose, nearness, topology
from nova_gpu.stock.core.holding import (
    Choice,
    Domain,
    Hardware,
    Holding,
    Instance,
    MediatedDevice,
    Obstacle,
    Way,
)

# The states of an instance that a restart of nova-compute and its records' change do not touch
# (nova.compute.vm_states)
SETTLED = ("active", "paused", "stopped")

_WAIT = "wait until it has ended, or end it, and look again"
# The longest path first
_PATHS = (
    *(nearness.Nearness.UNKNOWN, nearness.Nearness.ACROSS_NODES, nearness.Nearness.SAME_NODE),
    *(nearness.Nearness.SAME_ROOT, nearness.Nearness.SAME_SWITCH),
)


def judge(instance: Instance, domains: Mapping[str, Domain], hardware: Hardware) -> Holding | None:
    """Return what the instance has by stock Nova and what is in the way of taking it over.

    Return ``None`` if it has no GPU of this host by stock Nova. A takeover that has begun may have
    left no more than requests to remove: the cards are those that it has counted, too.

    :param domains: all domains of the host by uuid, those of other programs included
    """
    domain = domains.get(instance.uuid, Domain())
    of_gpus = hardware.cards_by_function
    functions = {
        function
        for function in instance.recorded.keys() | domain.functions
        if function in of_gpus
        and (function in instance.recorded or of_gpus[function] not in instance.counted)
    }
    counted = instance.counted if instance.unfinished else frozenset()
    missing = sorted(counted - hardware.gpus.keys())
    own = {of_gpus[function] for function in functions} | (counted & hardware.gpus.keys())
    cards = tuple(sorted(own))
    mediated = [hardware.mediated[uuid] for uuid in domain.mediated if uuid in hardware.mediated]
    if not cards and not mediated and not instance.unfinished:
        return None
    aliases = {instance.recorded.get(function) for function in functions} - {None}
    obstacles = [
        *of_state(instance),
        *_of_records(instance, domain, functions, hardware),
        *_of_cards(instance.uuid, functions, cards, domains, hardware),
        *_of_parts(instance, functions, mediated, hardware),
        *_of_products(cards, hardware),
        *_of_counted(instance, missing, cards),
    ]
    properties = words([hardware.gpus[card].product for card in cards], mediated)
    left, removed = _without(instance.extra_specs, aliases, mediated)
    return Holding(
        instance,
        tuple(way for way, has in ((Way.ALIAS, cards), (Way.MEDIATED, mediated)) if has),
        cards,
        frozenset(functions & instance.recorded.keys()),
        (*map(str, cards), *sorted(f"{part.parent}/{part.type_id}" for part in mediated)),
        frozenset(filter(None, aliases)),
        {**properties, **left},
        removed,
        tuple(dict.fromkeys(obstacles)),
        _choice(cards, domains, hardware),
    )


def words(products: Sequence[Product], mediated: Sequence[MediatedDevice]) -> dict[str, str]:
    """Return the properties by which a flavor asks nova-gpu for these cards and parts.

    The cards of a flavor are of one model. A model without a name is left out.
    """
    properties = {}
    if products:
        properties[names.GPUS] = f"= {len(products)}"
        if model := _stated(products[0].name):
            properties[names.MODEL] = model
    if mediated:
        properties[names.VGPUS] = f"= {len(mediated)}"
        properties[names.VGPU_TYPE] = f"s== {mediated[0].type_id}"
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
    extra_specs: Mapping[str, str], aliases: Collection[str | None], mediated: Collection[object]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return how the flavor ceases to ask stock Nova: properties to replace, and to remove.

    A value of ``pci_passthrough:alias`` is ``a2:1,nic:2``; what is not in *aliases* stays.
    """
    replaced, removed = {}, []
    if aliases and names.PCI_ALIAS in extra_specs:
        requests = [text.strip() for text in extra_specs[names.PCI_ALIAS].split(",")]
        others = [text for text in requests if text.partition(":")[0].strip() not in aliases]
        if others:
            replaced[names.PCI_ALIAS] = ",".join(others)
        else:
            removed.append(names.PCI_ALIAS)
    if mediated and (vgpus := f"resources:{names.VGPU_RESOURCE_CLASS}") in extra_specs:
        removed.append(vgpus)
    return replaced, tuple(removed)


def of_state(instance: Instance) -> Iterator[Obstacle]:
    """Yield what the instance is doing, or its state, if its records must not change now."""
    if instance.elsewhere is not None and instance.migration is None:
        yield Obstacle(
            f"it is on the host {instance.elsewhere}, and an evacuation has left records here",
            "start nova-compute here with the driver it had, which removes them",
        )
    if instance.migration is not None:
        yield Obstacle(f"a migration of it is {instance.migration}", _WAIT)
    if instance.task_state is not None:
        yield Obstacle(f"it has the task {instance.task_state}", _WAIT)
    if instance.vm_state not in SETTLED:
        yield Obstacle(
            f"its state is {instance.vm_state}",
            f"bring it into one of {', '.join(SETTLED)}, or delete it",
        )


def _of_records(
    instance: Instance, domain: Domain, functions: Collection[PciAddress], hardware: Hardware
) -> Iterator[Obstacle]:
    of_gpus = hardware.cards_by_function
    known = {of_gpus[function] for function in functions if function in instance.recorded}
    for function in sorted(functions):
        if function not in domain.functions:
            yield Obstacle(
                f"Nova's database counts {function} for it, and its domain has no such device",
                "reboot it hard, or see why virsh dumpxml lacks the device",
            )
        elif function not in instance.recorded:
            if of_gpus[function] in known:
                continue  # a companion: nova-gpu gives all functions of a card
            yield Obstacle(
                f"its domain has {function}, which Nova's database does not count for it",
                "take the device out of the domain (virsh detach-device)",
            )
        elif (
            instance.recorded[function] is None
            # Of what was taken over in part only this record is left.
            and of_gpus[function] not in instance.counted
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
    instance: Instance, missing: Iterable[PciAddress], cards: Collection[PciAddress]
) -> Iterator[Obstacle]:
    for card in missing:
        yield Obstacle(
            f"nova-gpu counts {card} for it, which this host does not have", "see nova-gpu verify"
        )
    if cards and not instance.unfinished and (instance.parts or instance.counted - {*cards}):
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
        if reason := availability.for_all(hardware.reasons.get(card, ())):
            yield Obstacle(f"{card} cannot be given to guests: {reason.reason}", reason.remedy)
        if card in hardware.divided:
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


def _of_parts(
    instance: Instance,
    functions: Collection[PciAddress],
    mediated: Iterable[MediatedDevice],
    hardware: Hardware,
) -> Iterator[Obstacle]:
    """Yield why parts of cards stay stock Nova's: only whole cards are taken over."""
    remedy = "resize it to a flavor with vgpus and vgpu_type when its owner agrees"
    for function in sorted(functions):
        card = hardware.cards_by_function[function]
        if function not in hardware.gpus[card].functions:
            yield Obstacle(f"{function} is a virtual function of {card}", remedy)
        elif card not in functions and card not in instance.counted:
            yield Obstacle(
                f"it has {function} without {card}, the first function of the card",
                "resize it to a flavor with an alias of both, or of neither",
            )
    for part in mediated:
        yield Obstacle(f"it has a mediated device of {part.card}, of type {part.type_id}", remedy)


def _of_products(cards: Sequence[PciAddress], hardware: Hardware) -> Iterator[Obstacle]:
    products = {hardware.gpus[card].product.key for card in cards}
    if len(products) > 1:
        yield Obstacle(
            f"it has cards of several products, {', '.join(sorted(products))}, and a flavor asks "
            "nova-gpu for cards of one",
            "resize it to a flavor with cards of one product",
        )


def _users(function: PciAddress, domains: Mapping[str, Domain]) -> set[str]:
    return {uuid for uuid, domain in domains.items() if function in domain.functions}


def _choice(
    cards: Sequence[PciAddress], domains: Mapping[str, Domain], hardware: Hardware
) -> Choice | None:
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
    return Choice(best, (next(paths), next(paths)))


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
