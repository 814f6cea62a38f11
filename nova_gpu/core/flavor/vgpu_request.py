# SPDX-License-Identifier: Apache-2.0
"""What a flavor asks for of parts of cards: ``vgpus``, ``vgpu_type``, ``gpu:heads`` and
``resources:VGPU``; and what each is to be, in the words for whole cards where it asks for none of
those."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import ClassVar

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import condition, quantity, request, request_group
from nova_gpu.core.flavor.condition import Condition
from nova_gpu.core.flavor.quantity import Quantity
from nova_gpu.core.flavor.request import Stated
from nova_gpu.core.flavor.request_group import GroupRequest

ALLOWED_TYPES = "the id or the name of a vGPU type, NAME or 's== NAME'"


@dataclasses.dataclass(frozen=True, slots=True)
class VGPURequest:
    """The vGPUs an instance is to have: ``count`` in all, which is the sum over ``groups``.

    ``counted`` says that the flavor itself has ``resources:VGPU``, which quota counts. ``type`` is
    one name, of the type or of its id. ``architecture`` and ``model`` are the cards',
    ``memory_mib`` and ``heads`` are what each vGPU has.
    """

    count: int
    type: Condition | None
    groups: tuple[GroupRequest, ...]
    counted: bool
    architecture: Condition | None = None
    model: Condition | None = None
    memory_mib: Quantity | None = None
    heads: Quantity | None = None

    resource_class: ClassVar[str] = names.VGPU_RESOURCE_CLASS

    def conditions(self, group: GroupRequest) -> Iterator[tuple[str, Stated, str]]:
        """The conditions, as :meth:`nova_gpu.core.flavor.request.GPURequest.conditions` has them"""
        if self.type is not None:
            yield names.VGPU_TYPE, self.type, names.TRAIT_VGPU_TYPE
        yield from self.of_each()

    def of_each(self) -> Iterator[tuple[str, Stated, str]]:
        """The conditions on what a vGPU of a type is"""
        yield from request.of_product(self.architecture, self.model, self.memory_mib)
        if self.heads:
            yield names.HEADS, self.heads, names.TRAIT_HEADS


def parse(extra_specs: Mapping[str, str]) -> VGPURequest | None:
    """The vGPUs a flavor asks for in our words, or ``None`` where it has none of them.

    A flavor with ``resources:VGPU`` alone is Nova's: any vGPU will do, of ours or of what
    [devices]enabled_mdev_types names.

    :raises InvalidExtraSpec: for a value that cannot be used, or two that contradict each other
    """
    words = _words(extra_specs)
    if not words:
        return None
    text = extra_specs.get(names.VGPUS)
    stated = None if text is None else request.parse_count(text, names.VGPUS)
    vgpu_type = parse_type(extra_specs)
    resource_class = names.VGPU_RESOURCE_CLASS
    groups = request_group.agreeing(extra_specs, names.VGPUS, stated, resource_class)
    counted = sum(group.count for group in groups.values())
    count = stated or counted
    if not count:
        raise exception.InvalidExtraSpec(
            words[0],
            extra_specs[words[0]],
            "the flavor asks for no vGPU",
            f"{words[0]} beside {names.VGPUS} or resources:{names.VGPU_RESOURCE_CLASS}",
        )
    # Where the flavor asks for whole GPUs as well, its traits and its words speak of those.
    whole = request.asks_for_gpus(extra_specs)
    if not counted:
        traits = (frozenset(), frozenset()) if whole else request_group.traits(extra_specs, "")
        groups[""] = GroupRequest("", count, *traits)
    elif "" in groups and whole and _share_the_unsuffixed(extra_specs):
        groups[""] = GroupRequest("", groups[""].count)
    return VGPURequest(
        count=count,
        type=vgpu_type,
        groups=tuple(group for group in groups.values() if group.count),
        counted=bool(counted),
        architecture=None if whole else request.parse_architecture(extra_specs),
        model=None if whole else request.parse_model(extra_specs),
        memory_mib=None if whole else request.parse_memory(extra_specs),
        heads=parse_heads(extra_specs),
    )


def asks_for_vgpus(extra_specs: Mapping[str, str]) -> bool:
    """Whether it asks for them in our words at all, however badly."""
    return bool(_words(extra_specs))


def _share_the_unsuffixed(extra_specs: Mapping[str, str]) -> bool:
    """Whether the whole GPUs of the flavor are asked for in the unsuffixed group, too"""
    return f"resources:{names.RESOURCE_CLASS}" in extra_specs or not request_group.ask_for_gpus(
        extra_specs
    )


def _words(extra_specs: Mapping[str, str]) -> list[str]:
    """The extra specs that speak of vGPUs"""
    words = [names.VGPUS, names.VGPU_TYPE, names.HEADS]
    if request.speaks_of_parts(extra_specs):
        words += request.PRODUCT_WORDS
    return [word for word in words if word in extra_specs]


def parse_type(extra_specs: Mapping[str, str]) -> Condition | None:
    """:raises InvalidExtraSpec: where ``vgpu_type`` is not one of ALLOWED_TYPES

    A type has two names, so that to be none of some names, or one of several, would say little.
    """
    text = extra_specs.get(names.VGPU_TYPE)
    if text is None:
        return None
    stated = condition.parse(names.VGPU_TYPE, text, spaces=True)
    if stated.equal_to is None:
        raise exception.InvalidExtraSpec(
            names.VGPU_TYPE, text, "the vGPUs of an instance are of one type", ALLOWED_TYPES
        )
    return stated


def parse_heads(extra_specs: Mapping[str, str]) -> Quantity | None:
    """:raises InvalidExtraSpec: where ``gpu:heads`` is not one of quantity.ALLOWED"""
    text = extra_specs.get(names.HEADS)
    return None if text is None else quantity.parse(names.HEADS, text)
