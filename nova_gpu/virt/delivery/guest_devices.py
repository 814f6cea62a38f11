# SPDX-License-Identifier: Apache-2.0
"""What a guest is told of its GPUs, kept with its instance: the controllers' services, which tell
it, know nothing of compute hosts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from nova import objects
from nova.virt import configdrive

from nova_gpu.conf import CONF
from nova_gpu.core.guest import devices
from nova_gpu.core.guest.devices import GuestDevice
from nova_gpu.core.guest.tree import Place
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots


def of_cards(
    cards: Sequence[GPU], places: Mapping[PciAddress, Place], roots: Roots
) -> list[GuestDevice]:
    """What a guest is told of its *cards*.

    :param places: where the guest finds them, by their addresses on the host
    """
    switches = (card.pcie_switch for card in cards if card.pcie_switch is not None)
    pcie = {
        address: link
        for address in dict.fromkeys([*(card.address for card in cards), *switches])
        if (link := sysfs.pcie_link(sysfs.device(address, roots)))
    }
    return devices.of_cards(cards, places, pcie)


def tell(
    instance: objects.Instance, cards: Sequence[GuestDevice], parts: Iterable[VGPUType]
) -> None:
    """Notes with the instance what its guest is told of its *cards*, and of what it has in parts,
    by their types.

    Nova saves that when the guest has started, and before where a config drive is made then: what
    is on it is asked of a service that reads what was saved.
    """
    told = [*cards, *itertools.starmap(devices.of_part, enumerate(parts, start=len(cards)))]
    metadata, said = instance.system_metadata, devices.to_metadata(told)
    if said == {key: metadata[key] for key in devices.keys_of(metadata)}:
        return
    for key in devices.keys_of(metadata):
        del metadata[key]
    metadata.update(said)
    if "DynamicJSON" in CONF.api.vendordata_providers and configdrive.required_by(instance):
        instance.save()
