# SPDX-License-Identifier: Apache-2.0
"""The cards that devices occupy completely: only these take part in NVSwitch partitions.

A vGPU that occupies its whole card does, a smaller one does not.
"""

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
    """The knowledge which vGPU types occupy a whole card, from the last inspection of each card.

    An unknown type counts as a whole card, so that a guest that may need a partition keeps it.
    """

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        # By card, the vGPU types that do not occupy the whole card
        self._shares: Mapping[PciAddress, frozenset[str]] = {}
        self._card_by_function: dict[PciAddress, PciAddress] = {}

    def look_at_parts(self, card: PciAddress, divided: DividedCard) -> None:
        """Record which of the vGPU types of *card*, as *divided* lists them, occupy all of it."""
        cards = frozenset(divided.types) - vgpu_capacity.whole_types(divided)
        self._shares = {**self._shares, card: cards}

    def is_whole(self, card: PciAddress, type_id: str) -> bool:
        """Return whether one vGPU of the type occupies the whole *card*, true if it is unknown."""
        return type_id not in self._shares.get(card, ())

    def card(self, part: Device) -> PciAddress | None:
        """Return the card that *part*, a card or a vGPU, occupies completely, or ``None``.

        It is ``None`` for a vGPU that occupies less, and for one that is not at a virtual function,
        because Fabric Manager activates partitions for virtual functions only.
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
