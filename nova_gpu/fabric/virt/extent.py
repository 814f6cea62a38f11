# SPDX-License-Identifier: Apache-2.0
"""The extent of a device: whether it is all of its card."""

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
    """By what was read of cards last.

    A type of which nothing is known counts as all of its card, so that no guest that may have
    a partition loses it.
    """

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        # By card: the types that are less than all of it
        self._shares: Mapping[PciAddress, frozenset[str]] = {}
        self._card_by_function: dict[PciAddress, PciAddress] = {}

    def look_at_parts(self, card: PciAddress, divided: DividedCard) -> None:
        """Note the types of vGPUs that *card* can be divided into."""
        cards = frozenset(divided.types) - vgpu_capacity.whole_types(divided)
        self._shares = {**self._shares, card: cards}

    def is_whole(self, card: PciAddress, type_id: str) -> bool:
        """Return whether one vGPU of the type is all of *card*."""
        return type_id not in self._shares.get(card, ())

    def card(self, part: Device) -> PciAddress | None:
        """Return the card that *part* occupies completely, or ``None``.

        A vGPU that is not at a virtual function is none, as its card can be joined with others by
        such a one alone.
        """
        function, type_id = device.function(part), device.vgpu_type(part)
        if type_id is None:
            return function
        card = self.physical(function)
        return card if card != function and self.is_whole(card, type_id) else None

    def physical(self, function: PciAddress) -> PciAddress:
        """Return the card of a virtual function; of any other function itself."""
        if function not in self._card_by_function:
            try:
                name = sysfs.link(sysfs.device(function, self._roots), "physfn")
                self._card_by_function[function] = PciAddress.parse(name or "")
            except (OSError, exception.InvalidPciAddress):
                return function  # it may only be gone for now
        return self._card_by_function[function]
