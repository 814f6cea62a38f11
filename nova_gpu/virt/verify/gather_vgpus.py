# SPDX-License-Identifier: Apache-2.0
"""Asks sysfs, and what nova-compute has noted, about the vGPUs of a host."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from nova_gpu.core import device
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, GroupKey, PciAddress
from nova_gpu.core.vgpu import vgpu_group
from nova_gpu.core.vgpu.vgpu import DividedCard, Kind, Slot
from nova_gpu.core.vgpu.vgpu_group import SharedCard
from nova_gpu.virt.delivery.made_vgpus import MadeVGPUs
from nova_gpu.virt.inventory import survey


def made(
    looked: survey.Survey,
    parts: Mapping[PciAddress, DividedCard],
    owners: Mapping[str, Collection[Device]],
) -> dict[str, frozenset[Slot]]:
    """The vGPUs that there are, by the uuid of whose they are.

    Somebody else's are not among them: neither do we know whose they are.

    :param owners: what domains name and the database counts, by uuid
    :raises OSError: where the kernel does not tell which mediated devices there are
    """
    functions = {a: parent for card in parts.values() for a, parent in card.parents.items()}
    asked = {(uuid, each) for uuid, has in owners.items() for each in device.slots(has)}
    asked |= {(uuid, slot) for slot, uuid in MadeVGPUs(looked.vgpus).instances().items()}
    found: dict[str, frozenset[Slot]] = {}
    for uuid, slot in asked:
        parent = functions.get(slot.parent)
        way = looked.ways.part(parent.kind if parent else Kind.MEDIATED)
        if way.is_there(slot, uuid, parent):
            found[uuid] = found.get(uuid, frozenset()) | {slot}
    return found


def free(
    gpus: Iterable[GPU],
    parts: Mapping[PciAddress, DividedCard],
    taken: Collection[Device],
    made: Collection[Slot],
) -> dict[GroupKey, int]:
    """How many more vGPUs there can be of each group of *parts*, whatever its cards' health.

    :param gpus: those of *parts*
    :param taken: the slots, and the functions, that anybody has
    :param made: those of the slots at which something is
    """
    whole = frozenset(taken)
    slots = device.slots(taken)
    plain = {
        address
        for card in parts.values()
        for address, parent in card.parents.items()
        if parent.kind is Kind.PLAIN
    }
    # Of a plain function its driver does not tell that it is somebody's.
    pending = {each for each in slots if each.parent in plain or each not in made}
    cards = {gpu.address: SharedCard(gpu, parts[gpu.address]).without(whole) for gpu in gpus}
    return {
        key: sum(c.room(group.facts.id, slots, pending).free for c in group.cards.values())
        for key, group in vgpu_group.groups(cards).items()
    }
