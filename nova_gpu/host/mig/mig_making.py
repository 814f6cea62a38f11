# SPDX-License-Identifier: Apache-2.0
"""Dividing cards into MIG instances, where an option wants that."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Iterable, Mapping

from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu import vgpu
from nova_gpu.host import child
from nova_gpu.host.mig import gpu_instances
from nova_gpu.host.pci import by_card
from nova_gpu.host.roots import Roots

_MAKER = pathlib.Path(__file__).with_name("mig_maker.py")
_OPTION = "mig_profile"
_FORM = "write the card's PCI address or vendor_id:product_id, =, and a profile: 10de:2335=1g.18gb"


def parse(entries: Iterable[str]) -> Mapping[str, str]:
    """The profiles of ``[gpu]mig_profile`` by address or product, as :class:`GPU` has them.

    :raises InvalidOption: where an entry is not of its form
    """
    return by_card.parse(_OPTION, entries, _profile, _FORM)


def _profile(text: str) -> str:
    if not vgpu.is_type_id(text):
        raise ValueError(f"{text!r} is no profile")
    return text


def make(card: PciAddress, profile: str, roots: Roots, timeout_s: float) -> int:
    """Divides *card* into as many instances of *profile* as it has room for; returns how many were
    made, 0 where it is divided already. For root.

    :raises DeviceUnavailable: where it is not divided; nothing of it is then either, but where
        *timeout_s* was over before all was made, or undone
    """

    def refused(reason: str, remedy: str) -> exception.DeviceUnavailable:
        text = f"[gpu]{_OPTION} wants MIG instances {profile} of it: {reason}"
        return exception.DeviceUnavailable(str(card), text, remedy)

    minor = gpu_instances.gpu_minor(card, roots)
    if minor is None:
        raise refused("NVIDIA's driver does not have it", "bind it to that driver")
    if gpu_instances.is_divided(minor, roots):
        return 0
    command = [sys.executable, "-P", str(_MAKER), str(card), profile]
    try:
        answer = json.loads(child.run(command, timeout_s))
        if "error" not in answer:
            return int(answer["made"])
        reason = str(answer["error"])
    except child.Failed as error:
        reason = str(error)
    except (ValueError, LookupError, TypeError) as error:
        reason = f"what was to do it gave no answer: {error!r}"
    raise refused(reason, "see what nvidia-smi mig -lgip and the kernel's log say of it")
