# SPDX-License-Identifier: Apache-2.0
"""Parts of cards as MIG instances, of which containers get the nodes.

They are there, made by the operator or at service start, and are cleaned between two guests.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from oslo_log import log as logging

import nova_gpu.privsep
from nova_gpu.core import exception
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu import vgpu
from nova_gpu.core.vgpu.vgpu import Kind, Parent, Slot
from nova_gpu.host import nodes
from nova_gpu.host.mig import gpu_instances
from nova_gpu.host.roots import Roots
from nova_gpu.virt.delivery.container_nodes import ContainerNodes, end_processes
from nova_gpu.virt.delivery.delivery import Delivery, Parts

LOG = logging.getLogger(__name__)


class MIGInstances(Parts):
    """The delivery of parts of cards on an LXC host. A container is not moved while it runs.

    :param delivery: how containers get nodes, those of whole cards and of MIG instances at once
    :param profiles: which instances cards are to have, by ``[gpu]mig_profile``
    """

    kind = Kind.INSTANCE
    words = "a MIG instance"

    def __init__(self, roots: Roots, delivery: ContainerNodes, profiles: Mapping[str, str]) -> None:
        self._roots = roots
        self._profiles = profiles
        self._nodes = delivery

    @property
    def delivery(self) -> Delivery:
        return self._nodes

    # What the host has

    def obstacle(self, card: GPU, functions: Sequence[PciAddress]) -> str | None:
        return self._nodes.obstacle(card)

    def is_there(self, slot: Slot, instance_uuid: str, parent: Parent | None) -> bool:
        """Return whether there is one, by the driver itself: also while NVML does not answer."""
        return gpu_instances.is_slot_there(slot, self._roots)

    # What is done

    def dividers(self) -> Mapping[str, Callable[[str], object]]:
        return {
            card: functools.partial(_divide, profile=profile)
            for card, profile in self._profiles.items()
        }

    def make(self, slot: Slot, instance_uuid: str) -> None:
        """Do nothing: the instance is there, or is not."""
        if not nodes.instance_nodes(slot, self._roots):
            raise exception.DeviceUnavailable(
                str(slot),
                vgpu.LOST,
                "make the card's layout what it was (nvidia-smi mig), or move the instance",
            )

    def clean(self, slot: Slot) -> bool:
        """Clean the MIG instance, and do not reset its card, of which others have the rest.

        One that is gone was cleaned by its removal.
        """
        if not gpu_instances.is_slot_there(slot, self._roots):
            return False
        end_processes(str(slot), self._roots)
        return True

    def give_back(
        self, slot: Slot, instance_uuid: str | None, clean: Callable[[Slot], None]
    ) -> None:
        clean(slot)

    def moved(self, data: Any, instance_uuid: str, old: Slot, new: Slot) -> None:
        raise NotImplementedError


def _divide(card: str, profile: str) -> None:
    """Divide the card into MIG instances of one profile.

    :raises DeviceUnavailable: as :func:`nova_gpu.host.mig.mig_layout.make`
    """
    if made := nova_gpu.privsep.vgpu.make_mig_instances(card, profile):
        LOG.info("Divided GPU %s into %d MIG instances %s", card, made, profile)
