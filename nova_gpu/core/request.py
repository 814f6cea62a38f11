# SPDX-License-Identifier: Apache-2.0
"""What a flavor asks for: the one reader of its words.

``gpus``, ``gpu_arch``, ``hypervisor`` (older: ``hypervisor_type``) are ours; ``resources:PGPU`` and
``trait:`` are Nova's, in the unsuffixed request group or in suffixed ones. A flavor may use either
or both, and then they must agree.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from nova_gpu.core import condition, exception, names
from nova_gpu.core.condition import Condition

MAX_GPUS = 1024
ALLOWED_COUNTS = f"'= N' or N, with N from 1 to {MAX_GPUS}"

# An instance gets exactly what it asks for, so all of these say the same.
_COUNT_OPERATORS = frozenset({"=", "==", ">="})

_HYPERVISORS = {"kvm": names.QEMU}

# The keys of nova.scheduler.utils.ResourceRequest.
_KEY = re.compile(r"(resources|trait)([a-zA-Z0-9_-]{1,64})?:(.*)")


@dataclasses.dataclass(frozen=True, slots=True)
class GroupRequest:
    """One request group of the Placement query that asks for GPUs.

    ``suffix`` is empty for the unsuffixed group. Of that only traits of GPUs count here, because
    its other traits speak of the host.
    """

    suffix: str
    count: int
    required_traits: frozenset[str] = frozenset()
    forbidden_traits: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class GPURequest:
    """The GPUs an instance is to have: ``count`` in all, which is the sum over ``groups``.

    ``counted`` says that the flavor itself has ``resources:PGPU``, which quota counts.
    """

    count: int
    architecture: Condition | None
    hypervisor: Condition | None
    groups: tuple[GroupRequest, ...]
    counted: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """GPUs an instance holds of one group: how many, of what architecture, the group's traits."""

    count: int
    architecture: str | None
    traits: frozenset[str]


def parse(extra_specs: Mapping[str, str]) -> GPURequest | None:
    """The GPUs a flavor asks for, or ``None`` where it asks for none.

    :raises InvalidExtraSpec: for a value that cannot be used, or two that contradict each other
    """
    gpus = extra_specs.get(names.GPUS)
    stated = None if gpus is None else parse_count(gpus)
    groups = _groups(extra_specs)
    counted = sum(group.count for group in groups.values())
    if gpus is not None and groups and counted != stated:
        raise exception.InvalidExtraSpec(
            names.GPUS,
            gpus,
            f"the flavor's resources:{names.RESOURCE_CLASS} says {counted}",
            "the same number in both, or one of the two",
        )
    count = stated or counted
    if not count:
        if (text := extra_specs.get(names.GPU_ARCH)) is not None:
            raise exception.InvalidExtraSpec(
                names.GPU_ARCH,
                text,
                "the flavor asks for no GPU",
                f"{names.GPU_ARCH} beside {names.GPUS} or resources:{names.RESOURCE_CLASS}",
            )
        return None
    if not counted:
        required, forbidden = _traits(extra_specs, "")
        groups[""] = GroupRequest("", count, required, forbidden)
    return GPURequest(
        count=count,
        architecture=parse_architecture(extra_specs),
        hypervisor=_agreed_hypervisor(extra_specs),
        groups=tuple(group for group in groups.values() if group.count),
        counted=bool(counted),
    )


def asks_for_gpus(extra_specs: Mapping[str, str]) -> bool:
    """Whether the flavor asks for GPUs at all, however badly."""
    return names.GPUS in extra_specs or any(
        (match := _KEY.fullmatch(key)) and match.group(1, 3) == ("resources", names.RESOURCE_CLASS)
        for key in extra_specs
    )


def parse_count(text: str) -> int:
    """:raises InvalidExtraSpec: where the value of ``gpus`` is not one of ALLOWED_COUNTS"""

    def refused(reason: str) -> exception.InvalidExtraSpec:
        return exception.InvalidExtraSpec(names.GPUS, text, reason, ALLOWED_COUNTS)

    words = text.split()
    if len(words) == 2 and words[0] in _COUNT_OPERATORS:
        words = words[1:]
    if len(words) != 1:
        raise refused("an instance gets exactly the number of GPUs it asks for")
    if not re.fullmatch("[0-9]{1,9}", words[0]):
        raise refused(f"{words[0]!r} is not a whole number")
    count = int(words[0])
    if count == 0:
        raise refused("for no GPU leave the property out")
    if count > MAX_GPUS:
        raise refused("no host has that many")
    return count


def parse_architecture(extra_specs: Mapping[str, str]) -> Condition | None:
    """:raises InvalidExtraSpec: where ``gpu_arch`` is not one of condition.ALLOWED"""
    text = extra_specs.get(names.GPU_ARCH)
    return None if text is None else condition.parse(names.GPU_ARCH, text)


def parse_hypervisor(
    extra_specs: Mapping[str, str], key: str = names.HYPERVISOR
) -> Condition | None:
    """What the flavor says of the hypervisor under *key*, GPUs or not. KVM is QEMU, as in Nova.

    :raises InvalidExtraSpec: where it is not one of condition.ALLOWED
    """
    text = extra_specs.get(key)
    return None if text is None else condition.parse(key, text, _HYPERVISORS)


def mismatch(
    request: GPURequest | None, held: Sequence[Held], hypervisor_type: str | None
) -> str | None:
    """Why what an instance holds is not what its flavor asks for, or ``None`` where it is.

    Of the flavor's traits only those count that the driver itself sets: the others Placement has
    judged, whatever scheduler there is. With more than one request group each of them must find
    enough among what is held.

    :param hypervisor_type: what the host reports, ``LXC`` or ``QEMU``
    """
    count = sum(part.count for part in held)
    asked = request.count if request else 0
    if count != asked:
        return f"it holds {count} GPUs and its flavor asks for {asked}"
    if request is None:
        return None
    if request.hypervisor and not request.hypervisor.matches(hypervisor_type):
        return f"the hypervisor is {hypervisor_type}, its flavor asks for {request.hypervisor}"
    if request.architecture:
        for part in held:
            if not request.architecture.matches(part.architecture):
                return (
                    f"it holds a GPU of architecture {part.architecture or 'unknown'}, "
                    f"its flavor asks for {request.architecture}"
                )
    for group in request.groups:
        required = set(filter(names.is_own_trait, group.required_traits))
        forbidden = set(filter(names.is_own_trait, group.forbidden_traits))
        fitting = sum(
            part.count for part in held if required <= part.traits and not forbidden & part.traits
        )
        if fitting < group.count:
            wanted = ", ".join(sorted(required) + [f"!{trait}" for trait in sorted(forbidden)])
            return f"its flavor asks for {group.count} GPUs with {wanted}, and it holds {fitting}"
    return None


def is_gpu_trait(trait: str) -> bool:
    """Whether *trait* speaks of GPUs and not of the host they are in."""
    return trait == names.TRAIT_GPU or trait.startswith((f"{names.TRAIT_GPU}_", "HW_GPU_"))


def _agreed_hypervisor(extra_specs: Mapping[str, str]) -> Condition | None:
    new = parse_hypervisor(extra_specs)
    old = parse_hypervisor(extra_specs, names.HYPERVISOR_TYPE)
    if new and old and new != old:
        raise exception.InvalidExtraSpec(
            names.HYPERVISOR_TYPE,
            extra_specs[names.HYPERVISOR_TYPE],
            f"{names.HYPERVISOR} says {extra_specs[names.HYPERVISOR]!r}",
            f"the same in both, or {names.HYPERVISOR} alone",
        )
    return new or old


def _groups(extra_specs: Mapping[str, str]) -> dict[str, GroupRequest]:
    """The request groups that name the resource class, by suffix."""
    groups = {}
    for key, text in extra_specs.items():
        match = _KEY.fullmatch(key)
        if match is None or match[1] != "resources" or match[3] != names.RESOURCE_CLASS:
            continue
        if not re.fullmatch("[0-9]{1,9}", text.strip()) or int(text) > MAX_GPUS:
            raise exception.InvalidExtraSpec(
                key, text, "it is not a number of GPUs", f"N, from 0 to {MAX_GPUS}"
            )
        suffix = match[2] or ""
        groups[suffix] = GroupRequest(suffix, int(text), *_traits(extra_specs, suffix))
    return groups


def _traits(extra_specs: Mapping[str, str], suffix: str) -> tuple[frozenset[str], frozenset[str]]:
    """(required, forbidden) of one request group. Nova ignores any other verdict; so do we."""
    traits: dict[str, set[str]] = defaultdict(set)
    for key, verdict in extra_specs.items():
        match = _KEY.fullmatch(key)
        if match is None or match[1] != "trait" or (match[2] or "") != suffix:
            continue
        if suffix or is_gpu_trait(match[3]):
            traits[verdict].add(match[3])
    return frozenset(traits["required"]), frozenset(traits["forbidden"])
