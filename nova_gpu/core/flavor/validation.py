# SPDX-License-Identifier: Apache-2.0
"""A list of all mistakes in a flavor; :mod:`nova_gpu.core.flavor.request` stops at the first."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator, Mapping

from nova_gpu.core import exception, extensions, names
from nova_gpu.core.flavor import gpu_extra_specs, parsers, query, request_group
from nova_gpu.core.flavor.request import FlavorRequest

_NAMESPACE = f"{names.MODEL.partition(':')[0]}:"
# The cutoff of difflib: it finds gpu, gpu_archs and hypervisors, but not hypervisor_version and
# cpu_arch, which are others' properties.
_ALIKE = 0.8
_STEMS = ("gpu", names.HYPERVISOR)
# What is written for gpus and resources:PGPU, which difflib does not find
_COUNTS = re.compile(
    r"\s*((n|num|number)_?(of_)?gpus?|gpus?_?(n|num|number|count)|resources?\w*:p?gpus?)\s*", re.I
)


def is_own(key: str) -> bool:
    """Return whether *key* is one of nova-gpu's extra specs or begins with ``gpu:``."""
    return key in gpu_extra_specs.NAMES or key.startswith(_NAMESPACE)


def unknown(extra_specs: Mapping[str, str]) -> exception.InvalidExtraSpec | None:
    """Return an error for a ``gpu:`` property that neither nova-gpu nor an extension has."""
    for key, value in extra_specs.items():
        if key.startswith(_NAMESPACE) and key not in gpu_extra_specs.NAMES:
            reason = f"it is misspelt, or {_not_installed()}"
            return exception.InvalidExtraSpec(key, value, reason, "the flavor without it")
    return None


def mistakes(flavor: FlavorRequest) -> list[str]:
    """Return one text for each mistake: the property, its value, the reason, what is allowed.

    Properties of other projects are not checked, but for misspelt names of nova-gpu's.
    """
    own = [*_unreadable(flavor), *_misspelt(flavor.extra_specs)]
    return own or list(_uncounted(flavor.extra_specs))


def _unreadable(flavor: FlavorRequest) -> Iterator[str]:
    """Yield one text for each property that the scheduler or the host would refuse.

    After each error the check is repeated without the property that caused it. Contradictions are
    looked for in the whole flavor, so that one with such a property is no second mistake.
    """
    known = set()
    for error in itertools.chain(
        _errors(flavor), gpu_extra_specs.contradictions(flavor.extra_specs)
    ):
        if error.key not in known:
            known.add(error.key)
            yield _mistake(error.key, error.value, f"{error.reason}; allowed: {error.allowed}")


def _errors(flavor: FlavorRequest) -> Iterator[exception.InvalidExtraSpec]:
    while True:
        try:
            _check(flavor)
            return
        except exception.InvalidExtraSpec as error:
            yield error
            wrong = error.key
        rest = dict(flavor.extra_specs)
        if rest.pop(wrong, None) is None:
            return  # of what was spelled out of several properties
        left = FlavorRequest(rest)
        if flavor.asks_for_gpus and not left.asks_for_gpus:
            # Otherwise all properties that describe GPUs would become errors too.
            rest[names.GPUS] = "1"
        if flavor.asks_for_vgpus and not left.asks_for_vgpus:
            rest[names.VGPUS] = "1"
        flavor = FlavorRequest(rest)


def _check(flavor: FlavorRequest) -> None:
    """Check a flavor as the scheduler and the host do."""
    flavor.check()
    if model := flavor.extra_specs.get(names.MODEL):
        parsers.judge_name(names.MODEL, model)
    spelled_out = dict(flavor.extra_specs)
    for request in flavor.requests:
        spelled_out = query.extra_specs(spelled_out, request, ()) or spelled_out
    flavor.check_guest_options()
    _ = flavor.on_stop
    for word in gpu_extra_specs.OF_EXTENSIONS:
        word.of(flavor.extra_specs)


def _misspelt(extra_specs: Mapping[str, str]) -> Iterator[str]:
    for key, value in extra_specs.items():
        if key in gpu_extra_specs.NAMES:
            continue
        lower = key.lower()
        is_ours = lower.startswith(_NAMESPACE)
        alike = difflib.get_close_matches(lower, gpu_extra_specs.NAMES, n=1, cutoff=_ALIKE)
        alike *= any(stem in lower for stem in _STEMS)
        if _COUNTS.fullmatch(key) and not request_group.ask_for_gpus({key: value}):
            yield _mistake(key, value, f"unknown property; did you mean {names.GPUS}?")
        elif is_ours or (alike and ":" not in key):
            hint = f"did you mean {alike[0]}?" if alike else f"there are: {', '.join(_ours())}"
            if is_ours:
                hint += f"; or {_not_installed()}"
            yield _mistake(key, value, f"unknown property; {hint}")


def _uncounted(extra_specs: Mapping[str, str]) -> Iterator[str]:
    """Yield a text for a number of stock Nova's vGPUs that Nova's scheduler ignores.

    Skyline's form for flavors writes ``resources:VGPU=vgpu:1`` (its StepCreate/index.jsx).
    """
    key = f"resources:{names.VGPU_RESOURCE_CLASS}"
    value = extra_specs.get(key, "0")
    if not value.isdecimal():
        number = value.rpartition(":")[2]
        hint = f"write {number}" if number.isdecimal() else "write a number"
        yield _mistake(key, value, f"it is no number, so Nova gives no vGPU for it; {hint}")


def _mistake(key: str, value: str, text: str) -> str:
    return f"{key}={value!r}: {text}"


def _not_installed() -> str:
    installed = ", ".join(extensions.names()) or "none"
    return f"its extension is not installed (installed: {installed})"


def _ours() -> list[str]:
    return sorted(word for word in gpu_extra_specs.NAMES if word.startswith(_NAMESPACE))
