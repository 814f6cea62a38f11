# SPDX-License-Identifier: Apache-2.0
"""The hooks that nova-compute calls when it starts, in periods, and around a guest's start and end.

A KVM host rebinds cards to drivers in them, an LXC host changes the modes of device nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Reasons

if TYPE_CHECKING:
    from nova import objects
    from nova.virt.libvirt import host as libvirt_host


class HostHooks:
    """The hooks of a host. They do nothing unless a subclass overrides them.

    ``judge`` is a callback that inspects each card after its return to the host's driver, before
    another guest gets it. The callback must not raise.
    """

    judge: Callable[[GPU], None] = staticmethod(lambda card: None)

    # Events

    def began(self, cards: Collection[GPU], host: libvirt_host.Host) -> None:
        """When the service starts, make missing device nodes of *cards* before guests resume."""

    def looked(self, cards: Collection[GPU], stay: Collection[PciAddress] = ()) -> None:
        """Rebind *cards* without an instance to the host's drivers, except those in *stay*.

        Called in each period, after reading Nova's database.
        """

    def begin(self, card: GPU, instance_uuid: str) -> None:
        """Begin to bind *card* for a guest, while Nova prepares the rest of the instance."""

    def started(self, instance_uuid: str) -> None:
        """Note that the start of the instance's guest has succeeded or failed."""

    def ending(self, host: libvirt_host.Host, instance: objects.Instance) -> None:
        """Stop a container that Nova is about to destroy, and wait until its processes have ended.

        :raises nova.exception.InstancePowerOffFailure: if they do not end
        """

    def domain_gone(self) -> None:
        """Restore the modes of nodes without a domain, in periods and after a domain's removal."""

    def cleaned(self, cards: Iterable[GPU]) -> None:
        """Rebind *cards*, which were cleaned and have no instance, to the host's drivers."""

    # Queries

    def unavailable(self) -> Mapping[PciAddress, Reasons]:
        """Return the cards that new instances cannot get now, by address, with the reasons."""
        return {}

    def forgive(self, address: PciAddress) -> None:
        """Forget the card's failed binding: it is in quarantine now, which is reason enough."""
