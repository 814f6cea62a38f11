# SPDX-License-Identifier: Apache-2.0
"""The whole cards that Nova has assigned to an instance."""

from __future__ import annotations

import contextlib

from nova import objects

from nova_gpu.core import exception, names
from nova_gpu.core.model import GPU, GPUGroup, PciAddress
from nova_gpu.virt.host_gpus import HostGPUs


def gpus_of(gpus: HostGPUs, instance: objects.Instance) -> list[tuple[GPUGroup, GPU]]:
    """What the instance holds of this host, by address.

    After a move ``instance.resources`` may name another host's devices, whose addresses may be ones
    of this host as well: only the provider tells.

    :raises DeviceUnavailable: where one of them is not here, or cannot be given
    """
    if not gpus.offer:
        return []  # without asking the database
    held = []
    for resource in instance.resources or ():
        if resource.resource_class != names.RESOURCE_CLASS:
            continue
        group = gpus.group_of(resource.provider_uuid)
        if group is None:
            continue
        address = PciAddress.parse(resource.identifier)
        reason = group.ill.get(address) if address in group.gpus else "it is not on this host"
        if reason:
            raise exception.DeviceUnavailable(
                str(address), reason, "mend or replace the card, or move the instance"
            )
        held.append((group, group.gpus[address]))
    return sorted(held, key=lambda each: each[1].address)


def prepare(gpus: HostGPUs, instance: objects.Instance) -> None:
    """Has them made ready beside what Nova does before a new guest is started: its network, its
    volumes.

    To have a card from the host's driver may take seconds. What fails here is said at the start.
    """
    if gpus.delivery.shares_driver:
        return  # then there is nothing to be had from it
    with contextlib.suppress(Exception):
        for _, gpu in gpus_of(gpus, instance):
            gpus.delivery.begin(gpu, instance.uuid)
