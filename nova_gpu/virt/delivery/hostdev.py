# SPDX-License-Identifier: Apache-2.0
"""What parts of cards have in common that QEMU guests get as host devices of libvirt's."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host.roots import Roots
from nova_gpu.virt.delivery.delivery import Delivery, Given, Parts
from nova_gpu.virt.delivery.pci_passthrough import UNSAVED
from nova_gpu.virt.fabric.fabric import Fabric

if TYPE_CHECKING:
    from nova import objects
    from nova.virt.libvirt import config as vconfig


class HostdevParts(Parts, Delivery):
    """Parts that a driver makes when a guest starts with them, and removes when it is gone"""

    refused = UNSAVED

    def __init__(self, roots: Roots, fabric: Fabric) -> None:
        self._roots = roots
        self._fabric = fabric

    @property
    def delivery(self) -> Delivery:
        return self

    def make_ready(self, instance: objects.Instance, given: Sequence[Given]) -> None:
        """Has the NVSwitches join the cards of which the guest has all.

        :raises DeviceUnavailable, BetterElsewhere: where they cannot
        """
        self._fabric.join([each for each in given if isinstance(each, Slot)], instance.uuid)

    def stateless(self, slot: Slot, *, is_running: bool) -> str | None:
        return self._fabric.stateless(slot)

    def make(self, slot: Slot, instance_uuid: str) -> None:
        # Only now: privsep takes half a second, and the commands make nothing.
        import nova_gpu.privsep.vgpu

        nova_gpu.privsep.vgpu.make(str(slot), instance_uuid)

    def render(
        self,
        instance: objects.Instance,
        guest: vconfig.LibvirtConfigGuest,
        given: Sequence[Given],
    ) -> None:
        from nova_gpu.virt.delivery import guest_config

        slots = [each for each in given if isinstance(each, Slot)]
        guest_config.add_vgpus(guest, {slot: self._hostdev(instance.uuid, slot) for slot in slots})

    @abc.abstractmethod
    def _hostdev(self, instance_uuid: str, slot: Slot) -> vconfig.LibvirtConfigGuestHostdev:
        """What libvirt is told of the part at *slot*"""

    def give_back(
        self, slot: Slot, instance_uuid: str | None, clean: Callable[[Slot], None]
    ) -> None:
        import nova_gpu.privsep.vgpu

        if instance_uuid is not None:
            nova_gpu.privsep.vgpu.remove(str(slot), instance_uuid)
