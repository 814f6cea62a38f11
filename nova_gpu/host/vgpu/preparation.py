# SPDX-License-Identifier: Apache-2.0
"""What is set on a card of NVIDIA's around the enabling of its virtual functions.

MIG mode must be on before, because the functions follow from it. Enabling them binds the card to
its driver again, which loses all else, so that comes after: GPU instances with their compute
instances, vGPUs of several sizes, the scheduler. All is lost with a boot of the host, but for MIG
mode on cards before Hopper. Sources: NVIDIA's vGPU and AI Enterprise guides; measured orders in
bigstack-oss/cubecos#1338 (RTX PRO 6000).

An option that is invalid raises InvalidOption, a step that fails DeviceUnavailable.

"""

from __future__ import annotations

import dataclasses
import pathlib
import shlex
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from nova_gpu.core import exception, json_text, vendors
from nova_gpu.core.model import GPU
from nova_gpu.host import child_process
from nova_gpu.host.mig import mig_layout
from nova_gpu.host.pci import selection
from nova_gpu.host.roots import Roots

_SETTER = child_process.source(pathlib.Path(__file__).parent.with_name("nvidia") / "vgpu_setter.py")
_SIZES, _SCHEDULER = "vgpu_mixed_sizes", "vgpu_scheduler"
# NVIDIA's words, and those of nvml.h
_SCHEDULERS = ("best_effort", "equal_share", "fixed_share")
_RESTART = "correct that, and start nova-compute again"
_FORM = "write the card's PCI address or vendor_id:product_id, =, and "


@dataclasses.dataclass(frozen=True, slots=True)
class Preparation:
    """What the options want of one card; false if they want nothing."""

    mig_profile: str | None = None
    mixed_sizes: bool = False
    scheduler: str | None = None
    command: str = ""

    def __bool__(self) -> bool:
        return self != Preparation()


def of(card: GPU, options: Any) -> Preparation:
    """Return what *options*, the option group ``[gpu]``, want of *card*."""
    profiles = mig_layout.parse_profiles(options.mig_profile)
    sizes, schedulers = parse_sizes(options.vgpu_mixed_sizes), parse_schedulers(options)
    if card.product.vendor_id != vendors.NVIDIA:
        return Preparation()
    return Preparation(
        selection.value_of(card, profiles),
        bool(selection.value_of(card, sizes)),
        selection.value_of(card, schedulers),
        shlex.join(options.divide_command),
    )


def parse_sizes(entries: Iterable[str]) -> Mapping[str, bool]:
    """Return the entries of ``[gpu]vgpu_mixed_sizes``, by a card's address or product."""
    return selection.parse_by_card(_SIZES, entries, _flag, f"{_FORM}true: 10de:26b9=true")


def parse_schedulers(options: Any) -> Mapping[str, str]:
    """Return the schedulers in ``[gpu]vgpu_scheduler``, by a card's address or product."""
    form = f"{_FORM}one of {', '.join(_SCHEDULERS)}: 10de:26b9=fixed_share"
    return selection.parse_by_card(_SCHEDULER, options.vgpu_scheduler, _scheduler, form)


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text == "true"


def _scheduler(text: str) -> str:
    if text not in _SCHEDULERS:
        raise ValueError(f"{text!r} is no scheduler of vGPUs")
    return text


def contradiction(wanted: Preparation) -> str | None:
    """Return which options exclude each other on one card, ``None`` if none do."""
    if wanted.mixed_sizes and wanted.scheduler == "fixed_share":
        reason = "NVIDIA's fixed share scheduler excludes vGPUs of several sizes"
        return f"[gpu]{_SIZES} and [gpu]{_SCHEDULER} name it: {reason}"
    if wanted.mig_profile and (wanted.mixed_sizes or wanted.scheduler):
        reason = "in MIG mode each GPU instance has its own; set them by [gpu]divide_command"
        option = _SIZES if wanted.mixed_sizes else _SCHEDULER
        return f"[gpu]mig_profile and [gpu]{option} name it: {reason}"
    return None


def begin(card: GPU, wanted: Preparation, roots: Roots, timeout_s: float) -> None:
    """Set what must be set on *card* before its functions are enabled. Needs root."""
    if what := contradiction(wanted):
        raise exception.DeviceUnavailable(str(card.address), what, _RESTART)
    if wanted.mig_profile:
        mig_layout.fill(card.address, "", roots, timeout_s)


def finish(card: GPU, wanted: Preparation, roots: Roots, timeout_s: float) -> None:
    """Set what the options want of *card*, which has its functions and no vGPU. Needs root.

    A repetition, after a run that was killed, sets what is missing.
    """
    if wanted.mig_profile:
        mig_layout.fill(card.address, wanted.mig_profile, roots, timeout_s)
    if not (wanted.mixed_sizes or wanted.scheduler):
        return
    options = {_SIZES: wanted.mixed_sizes, _SCHEDULER: wanted.scheduler}
    what = f"{' and '.join(f'[gpu]{name}' for name, value in options.items() if value)} not set"
    sizes = "mixed" if wanted.mixed_sizes else "equal"
    words = [str(card.address), sizes, wanted.scheduler or ""]
    try:
        answer = json_text.parse(
            child_process.run([sys.executable, "-P", "-c", _SETTER, *words], timeout_s)
        )
    except (child_process.Failed, ValueError) as error:
        raise _refused(card, what, str(error)) from error
    if "error" in answer:
        raise _refused(card, what, str(answer["error"]))


def _refused(card: GPU, what: str, reason: str) -> exception.DeviceUnavailable:
    return exception.DeviceUnavailable(str(card.address), f"{what}: {reason}", _RESTART)
