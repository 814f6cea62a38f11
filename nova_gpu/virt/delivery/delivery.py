# SPDX-License-Identifier: Apache-2.0
"""The interface of a way of delivery: what a host has of it, and what is done with its guests.

The commands ask what a host has and what stands in the way; so a module of a way imports what takes
its time, as Nova's libvirt driver and privsep do, only where a guest is given something.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

from nova_gpu.core.model import GPU, DeliveryMode, PciAddress
from nova_gpu.core.vgpu.vgpu import Slot

if TYPE_CHECKING:
    from nova import objects
    from nova.virt.libvirt import config as vconfig
    from nova.virt.libvirt import host as libvirt_host

    from nova_gpu.virt import daemon

# A whole card, or the place of one vGPU.
Given: TypeAlias = GPU | Slot


class Delivery(Protocol):
    """A way in which guests of this host get devices. What it is not given is another way's: each
    is handed all that a guest has, and takes its own."""

    def make_ready(self, instance: objects.Instance, given: Sequence[Given]) -> None:
        """Has the guest's devices ready before they are the guest's.

        :raises GuestUnfit, GuestCannotStart: where the guest cannot have them, or not now
        """

    def render(
        self,
        instance: objects.Instance,
        guest: vconfig.LibvirtConfigGuest,
        given: Sequence[Given],
    ) -> None:
        """Puts the guest's devices into its configuration.

        :raises GuestError: where one of them cannot be given
        """


class WholeCards(Delivery, Protocol):
    """A way in which whole cards are given, which a host has one of.

    ``shares_driver``: the host's driver goes on driving a card that a guest has, so that NVML may
    open it, and what the driver has divided stays divided. ``needs_hard_reboot``: a domain that is
    started as it was may lead to another card. ``share``: privsep's threads for slow
    work, where guests are given cards.
    """

    mode: DeliveryMode
    shares_driver: bool
    needs_hard_reboot: bool
    share: daemon.Share

    # What the host has

    def obstacle(self, card: GPU) -> str | None:
        """Why a guest cannot be given *card*, and what to do; ``None`` where it can."""

    def in_use(self, cards: Iterable[GPU]) -> Mapping[PciAddress, str]:
        """Why those of *cards* without an obstacle cannot be given at this moment"""

    def unfit(self, card: GPU) -> str | None:
        """Why the guest that has *card* could not be started with it as it is now"""

    def refused(self) -> frozenset[PciAddress]:
        """The cards that could not be had when they were last needed, for a while"""

    # What is done

    def serve(self, cards: Collection[GPU], host: libvirt_host.Host) -> None:
        """At service start, before guests are resumed: has there what *cards* lack."""

    def judge_by(self, judge: Callable[[GPU], None]) -> None:
        """Has *judge* look at each card that the host's drivers have again after a guest, before
        anybody gets it. It raises nothing."""

    def settle(self, cards: Collection[GPU], stay: Collection[PciAddress]) -> None:
        """After a look at the database: those of *cards* that nobody has go back to the host, but
        for those that are to *stay*."""

    def begin(self, card: GPU, instance_uuid: str) -> None:
        """Begins what takes long, beside what Nova does before it starts the guest."""

    def started(self, instance_uuid: str) -> None:
        """The instance's guest, which was rendered, has its domain now, or gets none."""

    def restore(self) -> None:
        """Sets back what of the host was changed for guests that have no domain any more."""

    def clean(self, card: GPU) -> bool:
        """Cleans *card*, which no guest has any more; returns whether it was reset.

        :raises NotClean, BindingFailed: where it is not clean, or that cannot be told
        """

    def give_back(self, cards: Iterable[GPU]) -> None:
        """Returns those of *cards* that nobody has to the host."""

    def forgive(self, address: PciAddress) -> None:
        """Takes the card from :meth:`refused`: something else keeps it from instances."""
