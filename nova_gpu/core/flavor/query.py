# SPDX-License-Identifier: Apache-2.0
"""Translation of a request for GPUs into extra specs that Nova turns into a Placement query."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import request_group
from nova_gpu.core.flavor.condition import Stated
from nova_gpu.core.flavor.request import Request
from nova_gpu.core.flavor.request_group import GroupRequest

# The suffix of the request group that the unsuffixed GPUs are moved to. In a group with a suffix
# one provider has all, which Placement finds sooner than several providers that have it together.
SUFFIX = "_nova_gpu"
_SUFFIXES = {names.RESOURCE_CLASS: SUFFIX, names.VGPU_RESOURCE_CLASS: "_nova_vgpu"}
# The prefixes of the traits of which each provider of GPUs has exactly one (group_traits.of_group)
_ONE_EACH = (
    *(names.TRAIT_ARCHITECTURE, names.TRAIT_HYPERVISOR),
    *(names.TRAIT_MODEL, names.TRAIT_MEMORY),
)


def needs_known(request: Request) -> bool:
    """Return whether the translation of *request* depends on the traits that exist.

    It does if several values satisfy a condition. Placement can require one trait only, so the
    existing traits that do not satisfy the condition are forbidden instead.
    """
    return any(
        condition.equal_to is None
        for group in request.groups
        for _, condition, _ in request.conditions(group)
    )


def extra_specs(
    flavor: Mapping[str, str],
    request: Request,
    known: Collection[str],
    *,
    image_says: bool = False,
    by_model: bool = False,
) -> dict[str, str] | None:
    """Return the extra specs *flavor* with the ``trait:`` and ``resources:`` that *request* needs.

    Translating the result again does not change it.

    :param known: the traits that some provider has; used only if :func:`needs_known`
    :param image_says: whether the image requires traits that a group of GPUs may have
    :param by_model: whether to request the class that counts the GPUs by model too. It is not added
        to the unsuffixed group, where it could be another provider's
    :returns: ``None`` if no known trait satisfies a condition
    :raises InvalidExtraSpec: if a ``trait:`` of the flavor contradicts its other properties or
        another ``trait:``
    """
    specs = dict(flavor)
    for group in request.groups:
        verdicts = _verdicts(request, group, known)
        if verdicts is None:
            return None
        _refuse_two_of_one(group, verdicts)
        suffix = group.suffix
        if not suffix and not _stays(flavor, request.resource_class, image_says):
            suffix = _SUFFIXES[request.resource_class]
            specs.pop(f"resources:{request.resource_class}", None)
            specs.pop(f"resources:{group.model}", None)
            for trait in group.required_traits | group.forbidden_traits:
                specs[f"trait{suffix}:{trait}"] = specs.pop(f"trait:{trait}")
        specs[f"resources{suffix}:{request.resource_class}"] = str(group.count)
        if model := group.model or (by_model and suffix and request.model_class):
            specs[f"resources{suffix}:{model}"] = str(group.count)
        for trait, verdict in verdicts.items():
            key = f"trait{suffix}:{trait}"
            if specs.setdefault(key, verdict) != verdict:
                raise exception.InvalidExtraSpec(
                    f"trait{group.suffix}:{trait}",
                    specs[key],
                    "the flavor's other properties say the opposite",
                    verdict,
                )
    if len(request_group.suffixes(specs)) > 1:
        # Placement insists on a group policy if there are several groups with a suffix. It is set
        # only then, because AggregateInstanceExtraSpecsFilter compares every extra spec with the
        # aggregates.
        specs.setdefault("group_policy", "none")
    return specs


def _refuse_two_of_one(group: GroupRequest, verdicts: Mapping[str, str]) -> None:
    """Refuse a trait that *group* requires next to another one that no provider has as well.

    :raises InvalidExtraSpec: if there is one
    """
    required = {trait for trait, verdict in verdicts.items() if verdict == "required"}
    for trait in sorted(group.required_traits):
        for prefix in filter(trait.startswith, _ONE_EACH):
            for other in sorted(required | group.required_traits):
                if other != trait and other.startswith(prefix):
                    raise exception.InvalidExtraSpec(
                        f"trait{group.suffix}:{trait}",
                        "required",
                        f"no GPU has it as well as {other}",
                        "one of the two",
                    )


def resolved(request: Request, known: Collection[str]) -> tuple[GroupRequest, ...] | None:
    """Return the groups of *request* with the traits of :func:`extra_specs` added to each.

    Return ``None`` if no known trait satisfies a condition.
    """
    expressions = []
    for group in request.groups:
        verdicts = _verdicts(request, group, known)
        if verdicts is None:
            return None
        required = {trait for trait, verdict in verdicts.items() if verdict == "required"}
        expressions.append(
            dataclasses.replace(
                group,
                required_traits=group.required_traits | required,
                forbidden_traits=group.forbidden_traits | (verdicts.keys() - required),
            )
        )
    return tuple(expressions)


def _verdicts(
    request: Request, group: GroupRequest, known: Collection[str]
) -> dict[str, str] | None:
    """Map each trait that *group* needs to ``required`` or ``forbidden``.

    Return ``None`` if no known trait satisfies a condition.
    """
    verdicts = {names.TRAIT_GPU: "required"}
    for _, condition, prefix in request.conditions(group):
        traits = _traits(condition, prefix, known)
        if traits is None:
            return None
        verdicts.update(traits)
    return verdicts


def _stays(flavor: Mapping[str, str], resource_class: str, image_says: bool) -> bool:
    """Return whether the GPUs must stay in the flavor's unsuffixed request group.

    A required trait of that group may be on any provider that serves it: the host or the GPUs. The
    GPUs stay if the flavor or the image requires a trait there that may be theirs. They do not stay
    next to another device in that group, because the trait could then be on the device.
    """
    devices = {key for suffix, key in request_group.devices(flavor) if not suffix}
    if devices - {resource_class}:
        return False
    return image_says or any(
        request_group.may_be_a_gpus(trait) and not names.is_own_trait(trait)
        for trait in request_group.unsuffixed_traits(flavor)
    )


def _traits(condition: Stated, prefix: str, known: Collection[str]) -> Mapping[str, str] | None:
    """Translate *condition* into traits, each with ``required`` or ``forbidden``.

    Return ``None`` if no known trait satisfies the condition. Placement can require one trait and
    forbid many, and refuses a query that names a trait that does not exist.

    :param prefix: the prefix of the traits that state the value
    """
    if condition.equal_to is not None:
        return {prefix + condition.equal_to.upper(): "required"}
    values = names.known_values(prefix, known)
    fitting = {value for value in values if condition.matches(value)}
    if len(fitting) == 1:
        return {prefix + fitting.pop().upper(): "required"}
    if not fitting:
        return None
    others = {prefix + value.upper() for value in values - fitting}
    return dict.fromkeys(others | ({prefix + names.UNKNOWN} & set(known)), "forbidden")
