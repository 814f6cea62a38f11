# SPDX-License-Identifier: Apache-2.0
"""Asks sysfs, and what nova-compute has noted, about the vGPUs of a host."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from nova_gpu.core.device import Device
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu import DividedCard, Kind, Slot, device_uuid
from nova_gpu.host import mdev
from nova_gpu.virt import survey
from nova_gpu.virt.made_vgpus import MadeVGPUs


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
    there = mdev.devices(looked.roots)
    functions = {a: parent for card in parts.values() for a, parent in card.parents.items()}

    def is_there(uuid: str, slot: Slot) -> bool:
        parent = functions.get(slot.parent)
        if parent is None or parent.kind is Kind.MEDIATED:
            return device_uuid(uuid, slot) in there
        return parent.kind is Kind.PLAIN or slot.type_id in parent.made

    asked = {(uuid, each) for uuid, has in owners.items() for each in has if isinstance(each, Slot)}
    asked |= {(uuid, slot) for slot, uuid in MadeVGPUs(looked.vgpus).instances().items()}
    found: dict[str, frozenset[Slot]] = {}
    for uuid, slot in asked:
        if is_there(uuid, slot):
            found[uuid] = found.get(uuid, frozenset()) | {slot}
    return found
