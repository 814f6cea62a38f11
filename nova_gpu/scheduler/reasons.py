# SPDX-License-Identifier: Apache-2.0
"""Why no host can give the GPUs asked for, in one sentence for the user.

The sentence ends in the instance's fault, which holds 255 characters in all. It speaks of numbers
and of names an operator chose to publish as traits; never of hosts or of other instances.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from nova_gpu.core import machine_type as machine_types
from nova_gpu.core import names
from nova_gpu.core.flavor import wanted
from nova_gpu.core.flavor.query import Request
from nova_gpu.core.flavor.request import GPURequest
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.placement import inventory
from nova_gpu.core.placement.inventory import Offer

_NAMES_SHOWN = 8
# The beginning of a trait that each of a kind has
_SIGNS = {
    names.RESOURCE_CLASS: names.TRAIT_GPU,
    names.VGPU_RESOURCE_CLASS: names.TRAIT_VGPU_TYPE,
}


def unknown_name(request: Request, traits: Collection[str]) -> str | None:
    """The condition that no GPU there is can satisfy, or ``None``.

    :param traits: those that some provider has
    """
    kind = wanted.kind(request)
    sign = _SIGNS[request.resource_class]
    if not any(trait.startswith(sign) for trait in traits):
        return f"no host offers {kind}"
    for group in request.groups:
        for key, condition, prefix in request.conditions(group):
            values = names.known_values(prefix, traits)
            if not any(condition.matches(value) for value in values):
                return f"no host has {kind} with {key} {condition}; there are: {_listed(values)}"
    return None


def unfit_machine_type(
    request: GPURequest, machine_type: str, traits: Collection[str]
) -> str | None:
    """Why the image of that machine type fits none of the GPUs there are, ``None`` where it does.

    :param machine_type: one without PCI Express, which a container has no use for
    """
    values = names.known_values(names.TRAIT_HYPERVISOR, traits)
    if request.hypervisor:
        values = frozenset(filter(request.hypervisor.matches, values))
    if not values or values - {names.QEMU}:
        return None
    return (
        f"the guest cannot take GPUs: {machine_types.lacking(machine_type)}; {machine_types.REMEDY}"
    )


def shortage(
    request: Request, group: GroupRequest, offers: Sequence[Offer], *, bound: bool = False
) -> str | None:
    """Why no provider of *offers* has what *group* asks for, or ``None`` where one has.

    :param offers: of the providers that have the group's traits
    :param bound: whether they are those of the one host the request is bound to
    """
    asked = wanted.gpus(request, group)
    if not offers and bound:
        return f"the requested host has no {asked}"
    if not offers:
        return f"no host has {asked}: each exists, but not in one {wanted.kind(request, 1)}"
    total = sum(offer.total for offer in offers)
    free = sum(offer.free for offer in offers)
    largest = max(offer.total for offer in offers)
    if largest < group.count:
        host = "the requested host has not" if bound else "no host has"
        return f"{host} {group.count} {asked}: the most in one host is {largest}"
    most = max(offer.free for offer in offers)
    if most >= group.count:
        return None
    used = sum(offer.used for offer in offers)
    text = f"{group.count} {asked} asked for, {free} of {total} free"
    if free:
        text += f", at most {most} in one host"
    text += f" ({used} in use"
    if out := inventory.out_of_service(total, free, used):
        text += f", {out} out of service"
    return f"{text})"


def too_many_to_count(request: Request, group: GroupRequest, providers: int) -> str:
    asked = wanted.gpus(request, group)
    return f"none of the {providers} groups of {asked} has {group.count} free"


def elsewhere(request: Request, resources: Mapping[str, int]) -> str:
    """The GPUs are there, but something else is missing beside them.

    :param resources: what the instance asks for beside them, by resource class
    """
    rest = [
        f"{amount} {resource_class}"
        for resource_class, amount in sorted(resources.items())
        if resource_class != request.resource_class
    ]
    return (
        f"{request.count} fitting {wanted.kind(request)} are free, but not together with "
        f"{', '.join(rest)} and all else that flavor, image and zone ask for"
    )


def _listed(values: Iterable[str]) -> str:
    shown = sorted(values, key=lambda value: (len(value) if value.isdecimal() else 0, value))
    more = ["..."] if len(shown) > _NAMES_SHOWN else []
    return ", ".join(shown[:_NAMES_SHOWN] + more) or "none whose name is known"
