# SPDX-License-Identifier: Apache-2.0
"""The delivery of plain virtual functions: without a vGPU type, and without a host driver."""

from __future__ import annotations

import nova_gpu.privsep
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Kind, Parent, Slot
from nova_gpu.host.vgpu import virtual_functions
from nova_gpu.virt.delivery.hostdev_parts import VirtualFunctions


class PlainFunctions(VirtualFunctions):
    """The delivery of virtual functions that have no vGPU type and no driver on the host."""

    kind = Kind.PLAIN
    words = "a virtual function as it is"
    managed = True

    def _obstacle_of(self, function: PciAddress) -> str | None:
        return virtual_functions.obstacle(function, self._roots)

    def is_there(self, slot: Slot, instance_uuid: str, parent: Parent | None) -> bool:
        return parent is not None


def divide(card: str, number: int) -> None:
    """Enable *number* virtual functions of *card*, as ``[gpu]virtual_functions`` states."""
    nova_gpu.privsep.vgpu.enable_functions(card, number=number)
