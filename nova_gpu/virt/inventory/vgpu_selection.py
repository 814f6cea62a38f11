# SPDX-License-Identifier: Apache-2.0
"""Which cards are given in parts, and in which, as the options and the host have it."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu import vgpu_room
from nova_gpu.core.vgpu.vgpu import DividedCard, Kind
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.host.vgpu import division
from nova_gpu.virt.delivery.ways import Ways

LOG = logging.getLogger(__name__)


def sorted_out(
    gpus: Mapping[PciAddress, GPU], divided: Mapping[PciAddress, DividedCard], ways: Ways
) -> tuple[dict[PciAddress, SharedCard], dict[PciAddress, str]]:
    """The cards that are given in parts, and why others of *divided* are not given at all."""
    cards, others = {}, {}
    for address, card in divided.items():
        unfit = ways.unfit(gpus[address], card)
        if reason := card.unread or _novas_own(card):
            others[address] = reason
        elif part := selected(card, unfit):
            for each in unfit.values():
                _report(address, each)
            if reason := ways.obstacle(gpus[address], part):
                others[address] = reason
            else:
                kept_back = ways.kept_back(gpus[address], part)
                cards[address] = SharedCard(gpus[address], part, withheld_types=kept_back)
        elif unfit and (whole := selected(card)):
            others[address] = unfit[min(whole.types)]
        elif card.has_instances:
            others[address] = (
                "it is divided into MIG instances, of types that [gpu]vgpu_types does not name; "
                "name their type, or turn MIG mode off (nvidia-smi -mig 0)"
            )
        elif any(parent.made for parent in card.parents.values()):
            others[address] = (
                "somebody has made vGPUs of it, of types that [gpu]vgpu_types does not name; "
                "remove those, or name their type"
            )
    return cards, others


def in_parts(
    found: Iterable[GPU], ways: Ways, told: division.Told = MappingProxyType({})
) -> tuple[dict[PciAddress, DividedCard], dict[PciAddress, str]]:
    """The cards of *found* that nova-compute would give in parts if it was started now, with the
    types that are offered, and why it would give none of others that are divided; but for those
    that an instance has whole.

    :param told: as :func:`nova_gpu.host.vgpu.division.divided`
    :raises OSError: where the kernel does not tell which mediated devices there are
    """
    gpus = {gpu.address: gpu for gpu in found}
    cards, others = sorted_out(gpus, ways.divided(gpus.values(), told), ways)
    return {address: shared.card for address, shared in cards.items()}, others


def selected(card: DividedCard, unfit: Collection[str] = ()) -> DividedCard | None:
    """*card* with the types that [gpu]vgpu_types names and that are not *unfit*, ``None`` where it
    has none of those.

    How many of each it carries may only be seen beside the others, so that it is told here.
    """
    patterns = CONF.gpu.vgpu_types
    types = {
        type_id: dataclasses.replace(facts, per_card=vgpu_room.carried(card, type_id))
        for type_id, facts in card.types.items()
        if type_id not in unfit
        and any(
            fnmatch.fnmatchcase(n, each) for n in (type_id, facts.name or "") for each in patterns
        )
    }
    return dataclasses.replace(card, types=types) if types else None


def _novas_own(card: DividedCard) -> str | None:
    """Why Nova's own driver has it: [devices]enabled_mdev_types, and its [mdev_*] sections"""
    mediating = {str(a) for a, parent in card.parents.items() if parent.kind is Kind.MEDIATED}
    for type_id in CONF.devices.enabled_mdev_types:
        section = getattr(CONF, f"mdev_{type_id}", None)
        addresses = section.device_addresses if section else []
        if type_id in card.types and (mediating & {*addresses} if addresses else mediating):
            return (
                f"[devices]enabled_mdev_types names its type {type_id}, so that Nova itself "
                "divides it; take that out to have it offered"
            )
    return None


@functools.cache
def _report(address: PciAddress, reason: str) -> None:
    """Once: the periodic task looks every minute."""
    LOG.warning("GPU %s: %s", address, reason)
