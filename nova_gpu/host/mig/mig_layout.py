# SPDX-License-Identifier: Apache-2.0
"""The MIG instances into which cards are divided, and the division of a card into new ones.

Two sources must agree on a card's instances: the driver's capability files name their device nodes,
NVML reports their size. A card that has instances is never divided anew. What
cannot be divided raises DeviceUnavailable, an entry that cannot be parsed InvalidOption.

"""

from __future__ import annotations

import collections
import pathlib
import sys
from collections.abc import Iterable, Mapping

from nova_gpu.core import exception, json_text
from nova_gpu.core.model import GPU, MIGInstance, PciAddress
from nova_gpu.core.vgpu import vgpu
from nova_gpu.core.vgpu.vgpu import slot_number
from nova_gpu.host import child_process
from nova_gpu.host.mig import gpu_instances
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.pci import selection
from nova_gpu.host.roots import Roots

_MAKER = child_process.source(pathlib.Path(__file__).with_name("mig_maker.py"))
# How often MIG mode is set, one second apart: it cannot be turned on while a process has the card
# open, as nova-gpu's own probe of NVML has for some seconds.
_TRIES = 15
_OPTION = "mig_profile"
_FORM = "write the card's PCI address or vendor_id:product_id, =, and a profile: 10de:2335=1g.18gb"


def divided(
    cards: Iterable[GPU], roots: Roots, *, shares: bool = False
) -> dict[PciAddress, vgpu.DividedCard]:
    """Return those *cards* that are divided into MIG instances, by address.

    A card whose MIG instances are unknown has the reason in ``unread``.

    :param shares: whether guests may share the memory of a GPU instance, which is not divided
        between its compute instances (NVIDIA's MIG user guide, "Compute instance")
    """
    return {
        card.address: _divided(card, roots, shares=shares)
        for card in cards
        if is_divided(card, roots)
    }


def is_divided(card: GPU, roots: Roots) -> bool:
    """Return whether *card* has MIG instances or is in MIG mode, so no guest gets all of it."""
    if card.driver != nvml.DRIVER:
        return False
    return card.mig is not None or gpu_instances.is_divided(card.address, roots)


def _unread(card: GPU, roots: Roots) -> str | None:
    """Return why the MIG instances of *card*, which is divided, are unknown, and the remedy."""
    if card.mig is None:
        return (
            "the driver has MIG instances of it, but NVML does not report them; see nova-compute's "
            "log, [gpu]nvml and [gpu]nvml_timeout"
        )
    by_driver = {instance.index for instance in gpu_instances.of_card(card.address, roots)}
    by_nvml = {instance.index for instance in card.mig}
    if not by_driver and not by_nvml:
        return (
            "it is in MIG mode and has no compute instance; create some (nvidia-smi mig -cgi ... "
            "-C) or turn MIG mode off (nvidia-smi -mig 0)"
        )
    if by_driver != by_nvml:
        return (
            f"the driver has the MIG instances {_listed(by_driver)} of it, but NVML reports "
            f"{_listed(by_nvml)}; nova-compute checks it again in the next period"
        )
    for instance in card.mig:
        if (
            instance.profile is None
            or not vgpu.is_type_id(instance.profile)
            or _number(instance) is None
        ):
            return (
                f"NVML does not report the profile of its MIG instance {instance.index}; see "
                "nvidia-smi -L"
            )
    return None


def _listed(indices: set[str]) -> str:
    return ", ".join(sorted(indices)) or "none"


def _number(instance: MIGInstance) -> int | None:
    return slot_number(instance.gpu_instance, instance.compute_instance)


def _divided(card: GPU, roots: Roots, *, shares: bool) -> vgpu.DividedCard:
    """Return the divided card with its MIG instances as its slots."""
    if reason := _unread(card, roots):
        return vgpu.DividedCard({}, {}, reason)
    layout = card.mig or ()
    numbers: dict[str, list[int]] = collections.defaultdict(list)
    facts = {}
    for instance in layout:
        number = _number(instance)
        if instance.profile is not None and number is not None:
            numbers[instance.profile].append(number)
            facts[instance.profile] = instance
    types = {
        profile: vgpu.VGPUType(
            profile,
            memory_mib=facts[profile].memory_mib,
            per_card=len(numbers[profile]),
            slices=facts[profile].slices,
        )
        for profile in sorted(numbers)
    }
    made = {profile: len(numbers[profile]) for profile in types}
    slots = {profile: tuple(sorted(numbers[profile])) for profile in types}
    parent = vgpu.Parent(vgpu.VGPUKind.INSTANCE, {}, made, slots)
    each_has = collections.Counter(instance.gpu_instance for instance in layout)
    sharing = frozenset(
        number
        for instance in layout
        if not shares
        and each_has[instance.gpu_instance] > 1
        and (number := _number(instance)) is not None
    )
    return vgpu.DividedCard(types, {card.address: parent}, sharing=sharing)


def parse_profiles(entries: Iterable[str]) -> Mapping[str, str]:
    """Return the profiles in ``[gpu]mig_profile``, by a card's address or product."""
    return selection.parse_by_card(_OPTION, entries, _profile, _FORM)


def _profile(text: str) -> str:
    if not vgpu.is_type_id(text):
        raise ValueError(f"{text!r} is not a MIG profile")
    return text


def make(card: PciAddress, profile: str, roots: Roots, timeout_s: float) -> int:
    """Divide *card* into as many MIG instances of *profile* as it has room for. Needs root.

    Return how many were created, 0 if the card has instances already.

    :raises DeviceUnavailable: if it cannot be divided. Instances that were created before the
        failure are removed, unless *timeout_s* passes first.
    """
    return 0 if gpu_instances.is_divided(card, roots) else fill(card, profile, roots, timeout_s)


def fill(card: PciAddress, profile: str, roots: Roots, timeout_s: float) -> int:
    """Divide *card* as :func:`make` does, also if it has instances already. Needs root.

    Return how many instances of the profile it has then, each with a compute instance. Without a
    *profile* only turn MIG mode on.
    """

    def refused(reason: str, remedy: str) -> exception.DeviceUnavailable:
        text = f"[gpu]{_OPTION} wants MIG instances {profile or 'later'} of it: {reason}"
        return exception.DeviceUnavailable(str(card), text, remedy)

    if gpu_instances.gpu_minor(card, roots) is None:
        raise refused("it is not bound to NVIDIA's driver", "bind it to that driver")
    try:
        return _run([str(card), profile, str(_TRIES)], timeout_s)
    except ValueError as error:
        raise refused(str(error), "see nvidia-smi mig -lgip and the kernel's log") from error


def restore(card: PciAddress, numbers: Iterable[int], timeout_s: float) -> int:
    """Make a compute instance in those GPU instances of *card* that have none. Needs root.

    Return how many were made.
    """
    ids = sorted(numbers)
    try:
        return _run([str(card), "", str(_TRIES), *map(str, ids)], timeout_s) if ids else 0
    except ValueError as error:
        raise exception.DeviceUnavailable(
            str(card),
            f"a guest has deleted the compute instance of its GPU instance {ids[0]}, and it cannot "
            f"be made again: {error}",
            "make it (nvidia-smi mig -cci)",
        ) from error


def _run(arguments: Iterable[str], timeout_s: float) -> int:
    """Run the script with these arguments; return how many instances were made."""
    try:
        command = [sys.executable, "-P", "-c", _MAKER, *arguments]
        answer = json_text.parse(child_process.run(command, timeout_s))
        if "error" not in answer:
            return int(answer["made"])
        reason = str(answer["error"])
    except child_process.Failed as error:
        reason = str(error)
    except (ValueError, LookupError, TypeError) as error:
        reason = f"the process that divides it gave no answer: {error!r}"
    raise ValueError(reason)
