# SPDX-License-Identifier: Apache-2.0
"""What a flavor asks for of parts of cards: ``vgpus``, ``vgpu_type`` and ``resources:VGPU``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import ClassVar

from nova_gpu.core import condition, exception, names, request, request_group
from nova_gpu.core.condition import Condition
from nova_gpu.core.request import Stated
from nova_gpu.core.request_group import GroupRequest

ALLOWED_TYPES = "the id or the name of a vGPU type, NAME or 's== NAME'"


@dataclasses.dataclass(frozen=True, slots=True)
class VGPURequest:
    """The vGPUs an instance is to have: ``count`` in all, which is the sum over ``groups``.

    ``counted`` says that the flavor itself has ``resources:VGPU``, which quota counts. ``type`` is
    one name, of the type or of its id.
    """

    count: int
    type: Condition | None
    groups: tuple[GroupRequest, ...]
    counted: bool

    resource_class: ClassVar[str] = names.VGPU_RESOURCE_CLASS

    def conditions(self, group: GroupRequest) -> Iterator[tuple[str, Stated, str]]:
        """As :meth:`nova_gpu.core.request.GPURequest.conditions`"""
        if self.type is not None:
            yield names.VGPU_TYPE, self.type, names.TRAIT_VGPU_TYPE


def parse(extra_specs: Mapping[str, str]) -> VGPURequest | None:
    """The vGPUs a flavor asks for in our words, or ``None`` where it has none of them.

    A flavor with ``resources:VGPU`` alone is Nova's: any vGPU will do, of ours or of what
    [devices]enabled_mdev_types names.

    :raises InvalidExtraSpec: for a value that cannot be used, or two that contradict each other
    """
    text = extra_specs.get(names.VGPUS)
    stated = None if text is None else request.parse_count(text, names.VGPUS)
    vgpu_type = parse_type(extra_specs)
    if text is None and vgpu_type is None:
        return None
    resource_class = names.VGPU_RESOURCE_CLASS
    groups = request_group.agreeing(extra_specs, names.VGPUS, stated, resource_class)
    counted = sum(group.count for group in groups.values())
    count = stated or counted
    if not count:
        raise exception.InvalidExtraSpec(
            names.VGPU_TYPE,
            extra_specs[names.VGPU_TYPE],
            "the flavor asks for no vGPU",
            f"{names.VGPU_TYPE} beside {names.VGPUS} or resources:{names.VGPU_RESOURCE_CLASS}",
        )
    if not counted:
        # Where the flavor asks for whole GPUs as well, they speak of those.
        whole = request.asks_for_gpus(extra_specs)
        traits = (frozenset(), frozenset()) if whole else request_group.traits(extra_specs, "")
        groups[""] = GroupRequest("", count, *traits)
    return VGPURequest(
        count, vgpu_type, tuple(group for group in groups.values() if group.count), bool(counted)
    )


def asks_for_vgpus(extra_specs: Mapping[str, str]) -> bool:
    """Whether it asks for them in our words at all, however badly."""
    return names.VGPUS in extra_specs or names.VGPU_TYPE in extra_specs


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
