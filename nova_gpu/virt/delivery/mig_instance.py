# SPDX-License-Identifier: Apache-2.0
"""The delivery of MIG instances to containers, by their device nodes.

The operator makes MIG instances, or nova-compute at its start. They persist, and are cleaned
between two guests.
"""

from __future__ import annotations

from collections.abc import Callable

from oslo_log import log as logging

import nova_gpu.privsep
from nova_gpu.core.vgpu.vgpu import Parent, Slot, VGPUKind
from nova_gpu.host.mig import gpu_instances
from nova_gpu.virt.delivery.container_nodes import ContainerNodes

LOG = logging.getLogger(__name__)


class MIGInstances(ContainerNodes):
    """The delivery of whole cards and MIG instances on an LXC host.

    One class delivers both, because they are rendered together. Containers are not live migrated.
    """

    kind = VGPUKind.INSTANCE
    part_name = "a MIG instance"

    def release(self, slot: Slot, instance_uuid: str | None, clean: Callable[[Slot], None]) -> None:
        clean(slot)

    def is_there(self, slot: Slot, instance_uuid: str, parent: Parent | None) -> bool:
        """Return whether the MIG instance at *slot* exists, by the driver's files in /proc."""
        return gpu_instances.is_slot_there(slot, self._roots)


def divide(card: str, profile: str) -> None:
    """Divide the card into MIG instances of one profile."""
    if made := nova_gpu.privsep.vgpu.make_mig_instances(card, profile):
        LOG.info("Divided GPU %s into %d MIG instances %s", card, made, profile)
