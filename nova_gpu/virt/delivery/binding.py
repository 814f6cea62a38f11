# SPDX-License-Identifier: Apache-2.0
"""The binding of a host's cards to vfio-pci for guests, and back to the host's drivers.

A card that the operator bound to vfio-pci at boot stays there. Any other card is bound to vfio-pci
before a guest starts with it, and stays so until no instance has it, even while its instance is
stopped: libvirt alone would return it to the host's driver at every stop, and that driver could
then use a card that an instance holds.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Collection, Iterable, Mapping

import futurist
from oslo_concurrency import lockutils
from oslo_log import log as logging

import nova_gpu.privsep.vfio
from nova_gpu.core import boundary, device, exception
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Reasons, Source, Unavailable
from nova_gpu.host.pci import iommu
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import quarantine
from nova_gpu.host.vfio import binding, passthrough
from nova_gpu.virt import threads
from nova_gpu.virt.delivery.host_hooks import HostHooks
from nova_gpu.virt.usage.ledger import Ledger

LOG = logging.getLogger(__name__)

_JUDGED = Unavailable(
    "it is being inspected after its return to the host's driver", "", Source.BINDING
)


class Bindings(HostHooks):
    """The binding of a host's cards to drivers; each card is rebound by one thread at a time."""

    def __init__(self, roots: Roots, ledger: Ledger, folder: pathlib.Path) -> None:
        self._roots = roots
        self._judged_now: set[PciAddress] = set()
        self._ledger = ledger
        self._bind_failures = quarantine.BindFailures(folder)
        self.share = threads.DaemonShare()
        # Cards that stay with vfio-pci after their return: the periods need not inspect them.
        self._prepared: set[PciAddress] = set()
        self._is_settled = False
        # By card, the instance and the binding that was begun for it, until the guest is prepared.
        self._begun: dict[PciAddress, tuple[str, futurist.Future[None]]] = {}
        # By card, the last failed return and how many times in a row it failed so.
        self._failures: dict[PciAddress, tuple[str, int]] = {}

    def begin(self, card: GPU, instance_uuid: str) -> None:
        """Begin to bind *card* to vfio-pci in a thread, while Nova prepares the instance."""
        if not passthrough.is_with_vfio(card, self._roots):
            begun = threads.begin(self.give_to_guests, card)
            self._begun[card.address] = (instance_uuid, begun)

    def finish(self, card: GPU, instance_uuid: str) -> None:
        """Wait for the binding that :meth:`begin` began, and bind *card* to vfio-pci if it is not.

        :raises BindingFailed: if one of the card's functions cannot be bound
        """
        uuid, begun = self._begun.pop(card.address, (instance_uuid, None))
        if begun is not None and uuid == instance_uuid:
            begun.result()
        # The card may have been returned to the host meanwhile, while its owner was unknown.
        self.give_to_guests(card)

    def give_to_guests(self, card: GPU) -> None:
        """Bind the PCI functions of *card* to vfio-pci, if they are not.

        :raises BindingFailed: if one of them cannot be bound
        """
        with self._slow_call(card), _lock(card.address):
            if not passthrough.is_with_vfio(card, self._roots):
                self._prepared.discard(card.address)
                try:
                    nova_gpu.privsep.vfio.give_to_guests(str(card.address))
                except exception.BindingFailed as error:
                    LOG.error("%s", error)
                    self._bind_failures.add(card, error)
                    raise
                LOG.info("Bound GPU %s to vfio-pci for guests", card.address)
            self._bind_failures.forget(card.address)

    def _slow_call(self, card: GPU) -> contextlib.AbstractContextManager[None]:
        """Return a context for a slow call of privsep, or an empty one if *card* is bound already.

        Enter it before the card's lock, in the same order as the cleaning of the card.
        """
        if passthrough.is_with_vfio(card, self._roots):
            return contextlib.nullcontext()
        return self.share.one()

    def unavailable(self) -> Mapping[PciAddress, Reasons]:
        judged = dict.fromkeys(tuple(self._judged_now), (_JUDGED,))
        return {**judged, **self._bind_failures.unavailable()}

    def forgive(self, address: PciAddress) -> None:
        self._bind_failures.forget(address)

    def looked(self, cards: Collection[GPU], stay: Collection[PciAddress] = ()) -> None:
        """Rebind *cards* without an instance to the host's drivers, except those in *stay*.

        The first call also binds the cards of this host's instances to vfio-pci again, even those
        of stopped instances: after a host boot they are with the host's drivers.
        """
        counted = device.cards(self._ledger.now.counted())
        self._bind_failures.prune()
        if not self._is_settled:
            self._is_settled = True
            self._take_again(card for card in cards if card.address in counted)
        self.cleaned(card for card in cards if card.address not in counted.union(stay))
        self._rebind_others(counted.union(card.address for card in cards))

    def _take_again(self, cards: Iterable[GPU]) -> None:
        for card in cards:
            try:
                with boundary.crossed(exception.BindingFailed):
                    self.give_to_guests(card)
            except exception.BindingFailed:
                pass  # logged already, and tried again when the guest starts
            except boundary.Failure as error:
                LOG.error("Failed to bind GPU %s to vfio-pci: %s", card.address, error)

    def cleaned(self, cards: Iterable[GPU]) -> None:
        for card in cards:
            with _lock(card.address):
                # Read under the lock, so that a guest that starts meanwhile keeps its card.
                if card.address in self._prepared | self._ledger.now.taken():
                    continue
                # A card that its host driver refused has no driver; then its record names it.
                if card.address not in _recorded() and not self._has_any_with_vfio(card):
                    continue
                self._judged_now.add(card.address)
                try:
                    self._return(card)
                finally:
                    self._judged_now.discard(card.address)

    def _return(self, card: GPU) -> None:
        if not self._rebind(card.address):
            return
        if passthrough.is_with_vfio(card, self._roots):
            self._prepared.add(card.address)
        else:
            LOG.info("Returned GPU %s to the host's drivers", card.address)
            self.judge(card)

    def _rebind_others(self, known: Collection[PciAddress]) -> None:
        """Rebind all cards but *known* ones, such as those that the options no longer select.

        Rebind only cards that nova-gpu bound; one that a guest has open stays with vfio-pci.
        """
        for address in _recorded().difference(known):
            with _lock(address):
                self._rebind(address)

    def _rebind(self, address: PciAddress) -> bool:
        try:
            with boundary.crossed():
                nova_gpu.privsep.vfio.give_to_host(str(address))
        except boundary.Failure as error:
            self._report(address, error.error)
            return False
        self._failures.pop(address, None)
        return True

    def _report(self, address: PciAddress, error: Exception) -> None:
        """Log once that the card at *address* could not be rebound to the host's drivers.

        If a process has the card open, log at info first, and a warning if that lasts: guests take
        time to end.
        """
        reason, times = self._failures.get(address, ("", 0))
        times = times + 1 if reason == str(error) else 1
        self._failures[address] = (str(error), times)
        if isinstance(error, exception.CardInUse):
            if times == 1:
                LOG.info(
                    "Cannot return GPU %s to the host's drivers yet, will retry in each period: %s",
                    address,
                    error.fact,
                )
            elif times == 2:
                LOG.warning("Still cannot return GPU %s to the host's drivers: %s", address, error)
        elif times == 1:
            LOG.error("Failed to return GPU %s to the host's drivers: %s", address, error)

    def _has_any_with_vfio(self, card: GPU) -> bool:
        try:
            return any(iommu.is_with_vfio(function, self._roots) for function in card.functions)
        except OSError:
            return False  # the card is gone, so nothing of it is bound


def _recorded() -> frozenset[PciAddress]:
    return binding.recorded(nova_gpu.privsep.vfio.records())


def _lock(address: PciAddress) -> contextlib.AbstractContextManager[object]:
    return lockutils.lock(f"nova-gpu-binding-{address}", do_log=False)
