# SPDX-License-Identifier: Apache-2.0
"""Parts of cards as virtual functions as they are, which no driver of the host is to have."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import nova_gpu.privsep
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Kind, Parent, Slot
from nova_gpu.host.roots import Roots
from nova_gpu.host.vgpu import virtual_functions
from nova_gpu.virt.delivery.hostdev_parts import VirtualFunctions
from nova_gpu.virt.delivery.pci_aliases import DeviceSpec


class PlainFunctions(VirtualFunctions):
    """The delivery of functions without types.

    :param wanted: how many functions cards are to have, by ``[gpu]virtual_functions``
    """

    kind = Kind.PLAIN
    words = "a virtual function as it is"
    managed = True

    def __init__(self, roots: Roots, device_spec: DeviceSpec, wanted: Mapping[str, int]) -> None:
        super().__init__(roots, device_spec)
        self._wanted = wanted

    def _obstacle_of(self, function: PciAddress) -> str | None:
        return virtual_functions.obstacle(function, self._roots)

    def is_there(self, slot: Slot, instance_uuid: str, parent: Parent | None) -> bool:
        return parent is not None

    def dividers(self) -> Mapping[str, Callable[[str], object]]:
        enable = nova_gpu.privsep.vgpu.enable_functions
        return {
            card: functools.partial(enable, number=number) for card, number in self._wanted.items()
        }
