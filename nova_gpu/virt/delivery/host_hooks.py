# SPDX-License-Identifier: Apache-2.0
"""HostHooks of a host's cards and nodes between guests: drivers of cards, rights of nodes.

It follows the events of the host, whatever the way in which a guest gets its GPUs.
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
    """A host that does nothing with them, as of commands.

    ``judge`` inspects each card that the host's drivers have again after a guest, before another
    gets it. It raises nothing.
    """

    judge: Callable[[GPU], None] = staticmethod(lambda card: None)

    # Events

    def began(self, cards: Collection[GPU], host: libvirt_host.Host) -> None:
        """Make at service start what *cards* lack, before guests are resumed."""
        return

    def looked(self, cards: Collection[GPU], stay: Collection[PciAddress] = ()) -> None:
        """Give the *cards* that no instance has back to the host, except those that are to *stay*.

        Call it after reading the database.
        """
        return

    def begin(self, card: GPU, instance_uuid: str) -> None:
        """Begin to take *card* from the host while Nova prepares the rest of the instance."""
        return

    def started(self, instance_uuid: str) -> None:
        """Note that the instance's guest has its domain now, or will get none."""
        return

    def ending(self, host: libvirt_host.Host, instance: objects.Instance) -> None:
        """Wait for the end of a guest that Nova is about to destroy, where that may take long.

        :raises nova.exception.InstancePowerOffFailure: where it does not end
        """
        return

    def domain_gone(self) -> None:
        """Set back what of the host was changed for guests that have no domain any more."""
        return

    def cleaned(self, cards: Iterable[GPU]) -> None:
        """Give *cards*, now clean, back to the host, except those that a guest has."""
        return

    # What is asked

    def unavailable(self) -> Mapping[PciAddress, Reasons]:
        """Return the cards that recently could not be bound when they were needed."""
        return {}

    def forgive(self, address: PciAddress) -> None:
        """Take the card from :meth:`unavailable`: something else keeps it from instances."""
        return
