# SPDX-License-Identifier: Apache-2.0
"""The request groups of a flavor that ask for GPUs: ``resources:PGPU`` and its ``trait:``.

What cannot be parsed, or is refused, raises InvalidExtraSpec.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Mapping

from nova_gpu.core import exception, names

MAX_GPUS = 1024

# Resource classes of the compute node's own provider.
_HOST_CLASSES = frozenset({"VCPU", "PCPU", "MEMORY_MB", "DISK_GB", "MEM_ENCRYPTION_CONTEXT"})

# The keys of nova.scheduler.utils.ResourceRequest.
_KEY = re.compile(r"(resources|trait)([a-zA-Z0-9_-]{1,64})?:(.*)")


@dataclasses.dataclass(frozen=True, slots=True)
class GroupRequest:
    """One request group of a flavor that requests ``count`` GPUs or vGPUs.

    ``suffix`` is empty for the unsuffixed group, of which only the traits of GPUs are here: its
    other traits are about the host. ``model``: the resource class by which the flavor lets quota
    count the GPUs of the group by model too, empty without one.
    """

    suffix: str
    count: int
    required_traits: frozenset[str] = frozenset()
    forbidden_traits: frozenset[str] = frozenset()
    model: str = ""


def parse(
    extra_specs: Mapping[str, str], resource_class: str = names.RESOURCE_CLASS
) -> dict[str, GroupRequest]:
    """Return the request groups of a flavor that request *resource_class*, by suffix."""
    groups = {}
    for key, text in extra_specs.items():
        match = _KEY.fullmatch(key)
        if match is None or match[1] != "resources" or match[3] != resource_class:
            continue
        if not re.fullmatch(r"[ \t\n]*[0-9]{1,9}[ \t\n]*", text) or int(text) > MAX_GPUS:
            raise exception.InvalidExtraSpec(
                key, text, "it is not a number of GPUs", f"N, from 0 to {MAX_GPUS}"
            )
        suffix = match[2] or ""
        groups[suffix] = GroupRequest(suffix, int(text), *traits(extra_specs, suffix))
    if resource_class == names.RESOURCE_CLASS:
        for suffix, model in _models(extra_specs, groups).items():
            groups[suffix] = dataclasses.replace(groups[suffix], model=model)
    return groups


def _models(
    extra_specs: Mapping[str, str], groups: Mapping[str, GroupRequest]
) -> Mapping[str, str]:
    """Return the class that counts the GPUs of a group by model, by the group's suffix.

    :raises InvalidExtraSpec: if it counts anything else than the group's GPUs
    """
    models: dict[str, str] = {}
    for key, text in extra_specs.items():
        match = _KEY.fullmatch(key)
        if match is None or match[1] != "resources" or not names.is_model_class(match[3]):
            continue
        suffix = match[2] or ""
        group = groups.get(suffix)
        if group is None or text.strip() != str(group.count) or suffix in models:
            raise exception.InvalidExtraSpec(
                key,
                text,
                f"it counts the GPUs of resources{suffix}:{names.RESOURCE_CLASS} by their model",
                "the same number in both, and one model",
            )
        models[suffix] = match[3]
    return models


def refuse_line_feeds(extra_specs: Mapping[str, str]) -> None:
    """Refuse a key that requests GPUs and ends in a line feed.

    The API and the scheduler accept it, because their patterns end in ``$``, which matches before
    a line feed (``nova.scheduler.utils.ResourceRequest``). Quota and this module do not count it.
    """
    for key, text in extra_specs.items():
        match = _KEY.fullmatch(key.removesuffix("\n"))
        if key.endswith("\n") and match and names.is_gpu_class(match[3]):
            raise exception.InvalidExtraSpec(
                key, text, "a line feed ends its name", f"{match[0]} without that"
            )


def refuse_traits_alone(extra_specs: Mapping[str, str]) -> None:
    """Refuse traits of a request group that requests no resource: Placement refuses the query."""
    having = suffixes(extra_specs)
    for key, verdict in extra_specs.items():
        match = _KEY.fullmatch(key)
        # Nova ignores other values.
        is_stated = match and match[1] == "trait" and verdict in ("required", "forbidden")
        if match and is_stated and match[2] and match[2] not in having:
            raise exception.InvalidExtraSpec(
                key,
                verdict,
                f"its request group asks for no resource (resources{match[2]}:)",
                f"trait:{match[3]}, or resources{match[2]}: as well",
            )


def agreeing(
    extra_specs: Mapping[str, str], word: str, stated: int | None, resource_class: str
) -> dict[str, GroupRequest]:
    """Return the result of :func:`parse`, if it agrees with the flavor's property *word*.

    :param stated: the number of GPUs that *word* states, ``None`` without it
    :raises InvalidExtraSpec: as :func:`parse`, and if *stated* is not the sum over the groups
    """
    groups = parse(extra_specs, resource_class)
    counted = sum(group.count for group in groups.values())
    if stated is not None and groups and counted != stated:
        raise exception.InvalidExtraSpec(
            word,
            extra_specs[word],
            f"the flavor's resources:{resource_class} says {counted}",
            "the same number in both, or one of the two",
        )
    return groups


def ask_for_gpus(
    extra_specs: Mapping[str, str], resource_class: str = names.RESOURCE_CLASS
) -> bool:
    """Return whether a key of *extra_specs* requests *resource_class*, whatever the amount."""
    return any(
        (match := _KEY.fullmatch(key)) and match.group(1, 3) == ("resources", resource_class)
        for key in extra_specs
    )


def suffixes(extra_specs: Mapping[str, str]) -> set[str]:
    """Return the suffixes of all request groups that request a resource, of GPUs or not."""
    matches = map(_KEY.fullmatch, extra_specs)
    return {match[2] for match in matches if match and match[1] == "resources" and match[2]}


def devices(extra_specs: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return the requested resource classes that are not the host's own, with their suffixes.

    GPUs and other devices are among them; vCPUs, memory and disk are not. Each pair is the suffix
    of the request group and the resource class.
    """
    return {
        (match[2] or "", match[3])
        for key, amount in extra_specs.items()
        if (match := _KEY.fullmatch(key))
        and match[1] == "resources"
        and match[3] not in _HOST_CLASSES
        and amount.strip() != "0"
    }


def is_gpu_trait(trait: str) -> bool:
    """Return whether *trait* is about GPUs, not about the host, judging by its name."""
    return names.is_own_trait(trait) or trait.startswith((f"{names.TRAIT_GPU}_", "HW_GPU_"))


def may_be_a_gpus(trait: str) -> bool:
    """Return whether a group of GPUs may have *trait*, judging by its name.

    Operators may set any ``CUSTOM_`` trait on a group.
    """
    return trait.startswith(("CUSTOM_", "HW_GPU_"))


def unsuffixed_traits(extra_specs: Mapping[str, str]) -> set[str]:
    """Return all traits that the flavor names in the unsuffixed group, of GPUs or not."""
    matches = map(_KEY.fullmatch, extra_specs)
    return {match[3] for match in matches if match and match[1] == "trait" and not match[2]}


def traits(extra_specs: Mapping[str, str], suffix: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the required and the forbidden traits of the request group with *suffix*.

    For the unsuffixed group only traits of GPUs are returned. Other values than ``required`` and
    ``forbidden`` are ignored, as Nova does.
    """
    named: dict[str, set[str]] = defaultdict(set)
    for key, verdict in extra_specs.items():
        match = _KEY.fullmatch(key)
        if match is None or match[1] != "trait" or (match[2] or "") != suffix:
            continue
        if suffix or is_gpu_trait(match[3]):
            named[verdict].add(match[3])
    return frozenset(named["required"]), frozenset(named["forbidden"])
