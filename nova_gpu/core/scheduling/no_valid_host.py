# SPDX-License-Identifier: Apache-2.0
"""Reasons why no host can give the requested GPUs: one sentence for operators, one for the user.

The sentence becomes the end of the instance's fault, which holds 255 characters in all. It contains
numbers, and names that an operator chose to publish as traits; never hosts or other instances.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from nova_gpu.core import names
from nova_gpu.core.exception import Reason
from nova_gpu.core.flavor import summary
from nova_gpu.core.flavor.request import GPURequest, Request
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.guest import machine_types
from nova_gpu.core.placement import closing_trait, inventory
from nova_gpu.core.placement.inventory import Inventory
from nova_gpu.core.topology import affinity
from nova_gpu.core.topology.affinity import Counts, Policy

_NAMES_SHOWN = 8
# Prefixes whose existing values are listed if a flavor requires a trait that no provider has.
_LISTED = (names.TRAIT_ARCHITECTURE, names.TRAIT_MODEL, names.TRAIT_VGPU_TYPE, names.TRAIT_MEMORY)
# The form in which a host gives GPUs of the other resource class
_OTHERWISE = {names.RESOURCE_CLASS: "in parts, as vGPUs", names.VGPU_RESOURCE_CLASS: "whole"}
# The prefixes of traits that every group of a resource class has
_SIGNS = {names.RESOURCE_CLASS: names.TRAIT_GPU, names.VGPU_RESOURCE_CLASS: names.TRAIT_VGPU_TYPE}
# The key below for hosts whose compute service is down, which have no trait
DOWN = "down"
# What hosts do, and the one that was asked for, that are closed by a trait that begins so
_CLOSED = {
    DOWN: (
        "take no new instance: their compute service is down",
        "takes no new instance: its compute service is down",
    ),
    **{trait.name: (trait.hosts, trait.host) for trait in closing_trait.declared()},
    names.DISABLED: (
        "take no new instance: their compute service is disabled",
        "takes no new instance: its compute service is disabled",
    ),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Supply:
    """The GPUs in the cloud that have the traits of one request group, which cannot be served now.

    ``providers`` is the number of resource providers with these traits, ``offers`` their
    inventories, ``None`` for too many providers to query. ``unmet`` are the conditions on traits
    that no existing GPU satisfies, each taken alone.
    """

    group: GroupRequest
    providers: int
    offers: Sequence[Inventory] | None
    unmet: Sequence[str] = ()


def missing(
    requests: Sequence[Request],
    supplies: Iterable[Iterable[Supply]],
    known: Collection[str],
    *,
    bound: bool = False,
    where: str = "",
) -> Reason | None:
    """Return a reason for the first request group that no provider can serve, ``None`` without any.

    :param supplies: for each request, the supplies of its groups; read only until a reason is found
    :param known: the traits that some provider has
    :param bound: whether the supplies are those of the only host that the request permits
    :param where: the text that limits the supplies to the hosts that the request permits
    """
    for request, of_request in zip(requests, supplies, strict=True):
        if reason := unknown_name(request, known):
            return reason
        for supply in of_request:
            if reason := _lack(request, supply, known, bound=bound, where=where):
                return Reason(
                    f"{reason.log_text}{where}", f"{reason.user_text}{where}", reason.is_final
                )
    return None


def _lack(
    request: Request, supply: Supply, known: Collection[str], *, bound: bool, where: str
) -> Reason | None:
    """Return why *supply* does not suffice, ``None`` if GPUs have become free meanwhile."""
    if supply.offers is None:
        return too_many_to_count(request, supply.group, supply.providers)
    if not supply.offers and where and not bound:
        text = f"no host has {summary.gpus(request, supply.group)}"
        return _of_all(request, text)
    if not supply.offers:
        return nowhere(request, supply.group, supply.unmet, known, bound=bound)
    return shortage(request, supply.group, supply.offers, bound=bound)


def unknown_name(request: Request, traits: Collection[str]) -> Reason | None:
    """Return a reason if no host offers the kind of GPU, or no existing GPU satisfies a condition.

    The reason is for the first such condition of the flavor, for example on the model, memory or
    hypervisor. Return ``None`` if each condition, by itself, is satisfied by some GPU.
    """
    kind = summary.kind(request)
    sign = _SIGNS[request.resource_class]
    if not any(trait.startswith(sign) for trait in traits):
        return _of_all(request, f"no host offers {kind}")
    for group in request.groups:
        for key, condition, prefix in request.conditions(group):
            values = names.known_values(prefix, traits)
            if not any(condition.matches(value) for value in values):
                there = f"there are: {_listed(values)}"
                text = f"no host has {kind} with {key} {condition}; {there}"
                return _of_all(request, text)
    return None


def unfit_machine_type(
    request: GPURequest, machine_type: str, traits: Collection[str]
) -> Reason | None:
    """Return why a guest with this machine type can have none of the GPUs.

    Return ``None`` if some of the GPUs are on hosts of containers, which have no machine type.

    :param machine_type: the image's machine type, which has no PCI Express
    """
    values = names.known_values(names.TRAIT_HYPERVISOR, traits)
    if request.hypervisor:
        values = frozenset(filter(request.hypervisor.matches, values))
    if not values or values - {names.QEMU}:
        return None
    lacking = machine_types.no_pci_express(machine_type)
    text = f"the guest cannot take GPUs: {lacking}; {machine_types.Q35_REMEDY}"
    return Reason.of_both(text, is_final=True)


def shortage(
    request: Request, group: GroupRequest, offers: Sequence[Inventory], *, bound: bool = False
) -> Reason | None:
    """Return why no provider in *offers* has enough GPUs for *group*, ``None`` if one has.

    :param offers: the inventories of the providers with the group's traits; not empty
    :param bound: whether *offers* are those of the only host that the request permits
    """
    words = summary.gpus(request, group, group.count)
    total = sum(offer.total for offer in offers)
    free = sum(offer.free for offer in offers)
    largest = max(offer.total for offer in offers)
    if largest < group.count:
        host = "the requested host does not have" if bound else "no host has"
        text = f"{host} {group.count} {words}: the most in one host is {largest}"
        return Reason.of_both(text, is_final=True)
    if (largest := max(offer.most for offer in offers)) < group.count:
        host = "of the requested host" if bound else "of any host"
        return Reason.of_both(
            f"no guest {host} has room for {group.count} {words}: the most in one guest is "
            f"{largest}",
            is_final=True,
        )
    most = max(offer.free for offer in offers)
    if most >= group.count:
        return None
    used = sum(offer.used for offer in offers)
    begin = f"{group.count} {words} asked for"
    text = f"{begin}, {free} of {total} free"
    if free:
        text += f", at most {most} in one host"
    text += f" ({used} in use"
    if out := inventory.out_of_service(total, free, used):
        text += f", {out} out of service"
    fitting = f"at most {most} free in one host" if most else "none free"
    return Reason(f"{text})", f"{begin}, {fitting}")


def apart(
    request: Request, cells: int, policy: Policy, most: int, free: Counts | None = None
) -> Reason:
    """Return a reason that says: no host has the GPUs on the NUMA nodes of the guest's cells.

    :param most: the most GPUs that so many cells could reach in one host
    :param free: the free GPUs of that host, ``None`` if those in use count, too
    """
    nodes = "one NUMA node" if cells == 1 else f"{cells} NUMA nodes"
    text = (
        f"{summary.all_of(request)} asked for on {nodes} with its processors and memory "
        f"({affinity.EXTRA_SPEC}={policy})"
    )
    if free is not None:
        return Reason.of_both(f"{text}: in the best host {affinity.described(free)}")
    if most < request.count:
        return Reason.of_both(f"{text}: the most there in one host is {most}")
    return Reason.of_both(f"{text}: processors and memory are free on no such node of a host")


def nowhere(
    request: Request,
    group: GroupRequest,
    unmet: Sequence[str],
    known: Collection[str],
    *,
    bound: bool = False,
) -> Reason:
    """Return why no provider has all traits that *group* requests.

    :param unmet: the traits of the group that no provider satisfies, even alone
    """
    if bound:
        text = f"the requested host has no {summary.gpus(request, group)}"
        return _of_all(request, text)
    kind = summary.kind(request)
    if not unmet:
        return _of_all(
            request,
            f"no host has {summary.gpus(request, group)}: there are {kind} for each of these "
            "conditions, and none for all of them at once",
        )
    trait = unmet[0]
    if trait in group.forbidden_traits:
        text = f"no host has {kind} without {trait}: all of them have it"
        return _of_all(request, text)
    what = trait
    for key, condition, prefix in request.conditions(group):
        if trait.startswith(prefix):
            what = f"{key} {condition}"
    text = f"no host has {kind} with {what}"
    if trait in known:
        text = f"{text}: those are given {_OTHERWISE[request.resource_class]}"
        return _of_all(request, text)
    for prefix in _LISTED:
        if trait.startswith(prefix):
            text += f"; there are: {_listed(names.known_values(prefix, known))}"
    return _of_all(request, text)


def too_many_to_count(request: Request, group: GroupRequest, providers: int) -> Reason:
    words = summary.gpus(request, group)
    return Reason(
        f"none of the {providers} groups of {words} has {group.count} free",
        f"{group.count} {summary.gpus(request, group, group.count)} asked for, and no host has "
        "that many free",
    )


def too_few(request: Request, instances: int, most: int | None) -> Reason | None:
    """Return a reason if not all instances of a multi-create request fit, else ``None``.

    :param most: how many instances there is room for, ``None`` if unknown
    """
    if not most or most >= instances:
        return None
    begin = f"{instances} instances at once with {summary.all_of(request)} each asked for"
    rule = "Nova starts all of them or none"
    return Reason(
        f"{begin}, and there is room for {most}; {rule}",
        f"{begin}, and not all of them fit; {rule}: ask for fewer",
    )


def by_image(traits: Collection[str]) -> Reason:
    """Return a reason that says: the image requires *traits* of GPUs, and the flavor has no GPU."""
    listed = ", ".join(sorted(traits))
    text = f"the image requires {listed}, and the flavor has no GPU; use a flavor with GPUs"
    return Reason.of_both(text, is_final=True)


def closed(request: Request, prefix: str, *, bound: bool = False) -> Reason:
    """Return a reason that says: only hosts that are closed to the request have free GPUs.

    :param prefix: the prefix of the traits that close them, such as DISABLED, or DOWN
    """
    hosts, host = _CLOSED[prefix]
    if bound:
        return Reason.of_both(f"the requested host {host}")
    verb = "is" if request.count == 1 else "are"
    return Reason.of_both(
        f"{summary.all_of(request)} asked for {verb} free only on hosts that {hosts}"
    )


def elsewhere(request: Request, resources: Mapping[str, int], condition: str | None) -> Reason:
    """Return a reason that says: fitting GPUs are free, but the rest of the request excludes them.

    :param condition: the condition that does, such as ``on no host with 8 VCPU``, ``None`` if only
        several together do
    """
    if condition is None:
        rest = [
            f"{amount} {resource_class}"
            for resource_class, amount in sorted(resources.items())
            if resource_class != request.resource_class
        ]
        listed = ", ".join(rest)
        condition = f"not together with {listed} and all else that flavor, image and zone ask for"
    verb = "is" if request.count == 1 else "are"
    return Reason.of_both(
        f"{request.count} fitting {summary.kind(request, request.count)} {verb} free, but "
        f"{condition}"
    )


def not_together(requests: Sequence[Request]) -> Reason:
    """Return a reason that says: each request group is free, but not all in one host."""
    wanted = " and ".join(map(summary.all_of, requests))
    return Reason.of_both(f"{wanted} asked for: each is free, but not all at once in one host")


def _listed(values: Iterable[str]) -> str:
    shown = sorted(values, key=lambda value: (len(value) if value.isdecimal() else 0, value))
    more = ["..."] if len(shown) > _NAMES_SHOWN else []
    return ", ".join(shown[:_NAMES_SHOWN] + more) or "none with a known name"


def _of_all(request: Request, text: str) -> Reason:
    """Return a reason about all that there is: it stays, unless types of vGPUs share cards.

    A host offers no vGPU of a type as long as those of other types take all of its cards.
    """
    return Reason.of_both(text, is_final=request.resource_class == names.RESOURCE_CLASS)
