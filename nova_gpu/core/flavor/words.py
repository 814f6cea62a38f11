# SPDX-License-Identifier: Apache-2.0
"""The value of each extra spec of ours, read by itself: what the API checks one at a time.

The words about where GPUs are to lie are in :mod:`nova_gpu.core.flavor.arrangement`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Protocol, TypeVar

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import condition, quantity
from nova_gpu.core.flavor.condition import Condition
from nova_gpu.core.flavor.quantity import Quantity
from nova_gpu.core.flavor.request_group import MAX_GPUS

ALLOWED_COUNTS = f"'= N' or N, with N from 1 to {MAX_GPUS}"
ALLOWED_TYPES = "the id or the name of a vGPU type, NAME or 's== NAME'"
ALLOWED_SWITCH = "true or false"

# An instance gets exactly what it asks for, so all of these say the same.
_COUNT_OPERATORS = frozenset({"=", "==", ">="})

_HYPERVISORS = {"kvm": names.QEMU}

# What Nova's own switches in flavors take (oslo.utils' strutils.bool_from_string).
_TRUE = frozenset({"1", "t", "true", "on", "y", "yes"})
_FALSE = frozenset({"0", "f", "false", "off", "n", "no"})


_Word = TypeVar("_Word", bound=enum.StrEnum)


class Stated(Protocol):
    """What a flavor says of a name or of a number."""

    def matches(self, value: str | None) -> bool: ...

    @property
    def equal_to(self) -> str | None: ...


def allowed(words: type[enum.StrEnum]) -> str:
    """The words that are allowed, as a message lists them"""
    return " or ".join(words)


def parse_word(key: str, text: str, words: type[_Word], reason: str) -> _Word:
    """The one of *words* that *text* is, however it is capitalised.

    :param reason: why anything else cannot be used
    :raises InvalidExtraSpec: where the value of *key* is none of them
    """
    try:
        return words(text.strip().lower())
    except ValueError as e:
        raise exception.InvalidExtraSpec(key, text, reason, allowed(words)) from e


def stated(key: str, extra_specs: Mapping[str, str], words: type[_Word]) -> _Word | None:
    """The one of *words* that the flavor states as *key*, ``None`` where it states none.

    :raises InvalidExtraSpec: where it states something else
    """
    text = extra_specs.get(key)
    return None if text is None else parse_word(key, text, words, "it is not one of its words")


def is_true(text: str | None) -> bool:
    """Whether Nova takes the value of a switch of its own for a yes"""
    return text is not None and text.strip().lower() in _TRUE


def parse_count(text: str, key: str = names.GPUS) -> int:
    """The number of GPUs or vGPUs.

    :raises InvalidExtraSpec: where the value of *key* is not one of ALLOWED_COUNTS
    """

    def refused(reason: str) -> exception.InvalidExtraSpec:
        return exception.InvalidExtraSpec(key, text, reason, ALLOWED_COUNTS)

    stated = text.split()
    if len(stated) == 2 and stated[0] in _COUNT_OPERATORS:
        stated = stated[1:]
    if len(stated) != 1:
        raise refused("an instance gets exactly the number of GPUs it asks for")
    if not re.fullmatch("[0-9]{1,9}", stated[0]):
        raise refused(f"{stated[0]!r} is not a whole number")
    count = int(stated[0])
    if count == 0:
        raise refused("for no GPU leave the property out")
    if count > MAX_GPUS:
        raise refused("no host has that many")
    return count


def parse_architecture(extra_specs: Mapping[str, str]) -> Condition | None:
    """The condition on the architecture.

    :raises InvalidExtraSpec: where ``gpu_arch`` is not one of condition.ALLOWED
    """
    text = extra_specs.get(names.GPU_ARCH)
    return None if text is None else condition.parse(names.GPU_ARCH, text)


def parse_model(extra_specs: Mapping[str, str]) -> Condition | None:
    """The condition on the model.

    :raises InvalidExtraSpec: where ``gpu:model`` is not one of condition.ALLOWED
    """
    text = extra_specs.get(names.MODEL)
    return None if text is None else condition.parse(names.MODEL, text, spaces=True)


def parse_memory(extra_specs: Mapping[str, str]) -> Quantity | None:
    """The condition on the memory in MiB.

    :raises InvalidExtraSpec: where ``gpu:memory_mib`` is not one of quantity.ALLOWED
    """
    text = extra_specs.get(names.MEMORY_MIB)
    return None if text is None else quantity.parse(names.MEMORY_MIB, text)


def parse_hypervisor(
    extra_specs: Mapping[str, str], key: str = names.HYPERVISOR
) -> Condition | None:
    """The condition on the hypervisor that the flavor states as *key*. KVM is QEMU, as in Nova.

    :raises InvalidExtraSpec: where it is not one of condition.ALLOWED
    """
    text = extra_specs.get(key)
    return None if text is None else condition.parse(key, text, _HYPERVISORS)


def parse_vgpu_type(extra_specs: Mapping[str, str]) -> Condition | None:
    """The name of the vGPU type or of its id.

    As a type has two names, to be none of some names, or one of several, would say little.

    :raises InvalidExtraSpec: where ``vgpu_type`` is not one of ALLOWED_TYPES
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
    """The condition on the displays of each vGPU.

    :raises InvalidExtraSpec: where ``gpu:heads`` is not one of quantity.ALLOWED
    """
    text = extra_specs.get(names.HEADS)
    return None if text is None else quantity.parse(names.HEADS, text)


def parse_option_rom(extra_specs: Mapping[str, str]) -> bool:
    """Whether the guest sees the option ROMs of its GPUs, as it does unless the flavor says no.

    :raises InvalidExtraSpec: where that is neither true nor false
    """
    return _parse_switch(extra_specs, names.OPTION_ROM, otherwise="true")


def parse_on_stop_move(extra_specs: Mapping[str, str]) -> bool:
    """Whether an instance that gave its GPUs back may be started on another host.

    :raises InvalidExtraSpec: where that is neither true nor false
    """
    return _parse_switch(extra_specs, names.ON_STOP_MOVE, otherwise="false")


def _parse_switch(extra_specs: Mapping[str, str], key: str, otherwise: str) -> bool:
    text = extra_specs.get(key, otherwise)
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise exception.InvalidExtraSpec(key, text, "it is neither true nor false", ALLOWED_SWITCH)
    return word in _TRUE


class OnStop(enum.StrEnum):
    """What becomes of an instance's GPUs when it is stopped, by a flavor, an image or a host"""

    KEEP = "keep"
    RELEASE = "release"


def parse_on_stop(text: str) -> OnStop:
    """What a flavor or an image says of a stopped instance's GPUs.

    :raises InvalidExtraSpec: where it is neither of the words
    """
    reason = "it does not say whether a stopped instance has its GPUs"
    return parse_word(names.ON_STOP, text, OnStop, reason)
