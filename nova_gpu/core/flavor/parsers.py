# SPDX-License-Identifier: Apache-2.0
"""Parsers of the values of nova-gpu's extra specs (:mod:`~nova_gpu.core.flavor.gpu_extra_specs`).

Each raises InvalidExtraSpec, with what is allowed, for a text that it cannot parse.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import TypeVar

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import condition
from nova_gpu.core.flavor.condition import Condition
from nova_gpu.core.flavor.request_group import MAX_GPUS

ALLOWED_COUNTS = f"'= N' or N, with N from 1 to {MAX_GPUS}"
ALLOWED_TYPES = "the id or the name of a vGPU type, NAME or 's== NAME'"
SWITCH = ("true", "false")
ALLOWED_SWITCH = " or ".join(SWITCH)
ALLOWED_PARAMS = "name=number, several with commas: enable_uvm=1,frame_rate_limiter=0"

_KVM = {"kvm": names.QEMU}
_SYNONYMS = {names.HYPERVISOR: _KVM, names.HYPERVISOR_TYPE: _KVM}
# A parameter of NVIDIA's vGPU plugin; the driver keeps 1024 characters of all.
_MOST_PARAMS = 16
_PARAM = re.compile("[a-z][a-z_]{0,31}=[0-9]{1,9}")
_OF_SEVERAL_WORDS = frozenset({names.MODEL, names.VGPU_TYPE})

# The values of Nova's own booleans (oslo.utils' strutils.bool_from_string, which takes 0.1 s to
# import).
_TRUE = frozenset({"1", "t", "true", "on", "y", "yes"})
_FALSE = frozenset({"0", "f", "false", "off", "n", "no"})


WordT = TypeVar("WordT", bound=enum.StrEnum)


def allowed(words: type[enum.StrEnum]) -> str:
    """Return the members of *words* as one text: ``pack or spread``."""
    return " or ".join(words)


def parse_word(key: str, text: str, words: type[WordT], reason: str) -> WordT:
    """Return the member of *words* that *text* names, in any capitalisation."""
    try:
        return words(text.strip().lower())
    except ValueError as e:
        raise exception.InvalidExtraSpec(key, text, reason, allowed(words)) from e


def stated(key: str, extra_specs: Mapping[str, str], words: type[WordT]) -> WordT | None:
    """Return the member of *words* that the extra spec *key* names, ``None`` without that key."""
    if (text := extra_specs.get(key)) is None:
        return None
    return parse_word(key, text, words, "it is not one of the allowed words")


def boolean(text: str) -> bool | None:
    """Return what Nova reads *text* as, ``None`` if it is neither true nor false."""
    word = text.strip().lower()
    return word in _TRUE if word in _TRUE | _FALSE else None


def is_true(text: str | None) -> bool:
    """Return whether Nova reads *text*, the value of a boolean extra spec, as true."""
    return text is not None and boolean(text) is True


def parse_count(text: str, key: str = names.GPUS) -> int:
    """Parse the number of GPUs or vGPUs in the extra spec *key*."""

    def refused(reason: str) -> exception.InvalidExtraSpec:
        return exception.InvalidExtraSpec(key, text, reason, ALLOWED_COUNTS)

    # An instance gets exactly what it asks for, so all operators mean the same.
    operator = re.match(r"\s*(==|>=|=)(?!=)", text)
    stated = text[operator.end() if operator else 0 :].split()
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


def parse_name(key: str, text: str) -> Condition:
    """Parse the condition on a name in the extra spec *key*, in which ``KVM`` means ``QEMU``."""
    return condition.parse_name(key, text, _SYNONYMS.get(key), spaces=key in _OF_SEVERAL_WORDS)


def judge_name(key: str, text: str) -> Condition:
    """Parse as :func:`parse_name`, but refuse a comma, which :func:`names.word` leaves out.

    Instances that were made with one, such as ``s!= K80, P40``, must go on to start.
    """
    if "," in text:
        reason = "a comma is no part of a name"
        raise exception.InvalidExtraSpec(key, text, reason, condition.ALLOWED_NAMES)
    return parse_name(key, text)


def parse_vgpu_type(key: str, text: str) -> Condition:
    """Parse the condition on the name or the id of a vGPU type.

    Alternatives and exclusions are refused: as a type has two names, they would be ambiguous.
    """
    stated = parse_name(key, text)
    if stated.equal_to is None:
        reason = "the vGPUs of an instance are of one type"
        raise exception.InvalidExtraSpec(key, text, reason, ALLOWED_TYPES)
    return stated


def parse_params(key: str, text: str) -> str:
    """Return the parameters of vGPUs in *text* without white space, in the order of their names."""
    params = sorted(param.strip() for param in text.split(","))
    names_ = [param.partition("=")[0] for param in params]
    if len(params) > _MOST_PARAMS or not all(map(_PARAM.fullmatch, params)):
        reason = "it is no list of parameters"
    elif len(set(names_)) < len(names_):
        reason = "it names a parameter twice"
    else:
        return ",".join(params)
    raise exception.InvalidExtraSpec(key, text, reason, ALLOWED_PARAMS)


def parse_switch(key: str, extra_specs: Mapping[str, str], *, otherwise: bool) -> bool:
    """Parse the boolean *key* of a flavor; return *otherwise* if the flavor has none."""
    text = extra_specs.get(key)
    if text is None:
        return otherwise
    value = boolean(text)
    if value is None:
        raise exception.InvalidExtraSpec(key, text, "it is neither true nor false", ALLOWED_SWITCH)
    return value


class OnStop(enum.StrEnum):
    """Whether an instance keeps or releases its GPUs when it is stopped."""

    KEEP = "keep"
    RELEASE = "release"


def parse_on_stop(text: str) -> OnStop:
    """Parse ``gpu:on_stop`` of a flavor, or the image property of the same meaning."""
    reason = "it does not say whether a stopped instance keeps its GPUs"
    return parse_word(names.ON_STOP, text, OnStop, reason)
