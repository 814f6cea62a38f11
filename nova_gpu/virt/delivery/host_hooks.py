# SPDX-License-Identifier: Apache-2.0
"""The hooks by which a host keeps its cards and device nodes in order between guests.

A delivery implements them: for KVM they rebind cards to drivers, for LXC they change the modes of
device nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from nova_gpu.core.availability import Reasons
from nova_gpu.core.model import GPU, PciAddress

if TYPE_CHECKING:
    from nova import objects
    from nova.virt.libvirt import host as libvirt_host


class HostHooks:
    """The hooks of a host, which do nothing unless overridden; the commands use them as they are.

    ``judge`` is a callback that inspects each card after its return to the host's driver, before
    another guest gets it. The callback must not raise.
    """

    judge: Callable[[GPU], None] = staticmethod(lambda card: None)

    # Events

    def began(self, cards: Collection[GPU], host: libvirt_host.Host) -> None:
        """Make what *cards* lack, such as device nodes, at service start, before guests resume."""
        return

    def looked(self, cards: Collection[GPU], stay: Collection[PciAddress] = ()) -> None:
        """Return the *cards* that no instance has to the host's drivers, except those to *stay*.

        Call it after reading the database.
        """
        return

    def begin(self, card: GPU, instance_uuid: str) -> None:
        """Begin to take *card* from the host while Nova prepares the rest of the instance."""
        return

    def started(self, instance_uuid: str) -> None:
        """Record that the start of the instance's guest has ended: it has a domain, or failed."""
        return

    def ending(self, host: libvirt_host.Host, instance: objects.Instance) -> None:
        """Wait for the end of a guest that Nova is about to destroy, if that may take long.

        :raises nova.exception.InstancePowerOffFailure: if the guest does not end
        """
        return

    def domain_gone(self) -> None:
        """Undo changes of the host, such as modes of device nodes, for guests without a domain."""
        return

    def cleaned(self, cards: Iterable[GPU]) -> None:
        """Return *cards*, which are clean now, to the host's drivers, except those of instances."""
        return

    # Queries

    def unavailable(self) -> Mapping[PciAddress, Reasons]:
        """Return the reasons of cards whose last binding failed, by address."""
        return {}

    def forgive(self, address: PciAddress) -> None:
        """Remove the card from :meth:`unavailable`, because another reason applies to it now."""
        return
