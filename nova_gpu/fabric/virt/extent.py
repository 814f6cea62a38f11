# SPDX-License-Identifier: Apache-2.0
"""The extent of a device: whether it occupies its whole card."""

from __future__ import annotations

from collections.abc import Mapping

from nova_gpu.core import device, exception
from nova_gpu.core.device import Device
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu import vgpu_capacity
from nova_gpu.core.vgpu.vgpu import DividedCard
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots


class Extent:
    """The extents of vGPU types, by the last inspection of each card.

    An unknown type counts as a whole card, so that a guest that may need a partition keeps it.
    """

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        # By card, the vGPU types that do not occupy the whole card
        self._shares: Mapping[PciAddress, frozenset[str]] = {}
        self._card_by_function: dict[PciAddress, PciAddress] = {}

    def look_at_parts(self, card: PciAddress, divided: DividedCard) -> None:
        """Record the vGPU types that *card* can be divided into."""
        cards = frozenset(divided.types) - vgpu_capacity.whole_types(divided)
        self._shares = {**self._shares, card: cards}

    def is_whole(self, card: PciAddress, type_id: str) -> bool:
        """Return whether one vGPU of the type occupies the whole *card*."""
        return type_id not in self._shares.get(card, ())

    def card(self, part: Device) -> PciAddress | None:
        """Return the card that *part* occupies completely, ``None`` if it does not.

        The result is ``None`` for a vGPU that is not at a virtual function: Fabric Manager joins
        vGPUs by their virtual functions only.
        """
        function, type_id = device.function(part), device.vgpu_type(part)
        if type_id is None:
            return function
        card = self.physical(function)
        return card if card != function and self.is_whole(card, type_id) else None

    def physical(self, function: PciAddress) -> PciAddress:
        """Return the card of a virtual function; for any other function return *function*."""
        if function not in self._card_by_function:
            try:
                name = sysfs.link(sysfs.device(function, self._roots), "physfn")
                self._card_by_function[function] = PciAddress.parse(name or "")
            except (OSError, exception.InvalidPciAddress):
                return function  # not cached, because the function may come back
        return self._card_by_function[function]
