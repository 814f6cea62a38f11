# SPDX-License-Identifier: Apache-2.0
"""Which cards are with VFIO and which with the host's drivers.

A card that was prepared at boot is always with VFIO. Any other one is from before a guest starts
with it until no instance has it any more, also while its instance is stopped: libvirt alone would
hand it to the host's driver at every stop, and that could then touch what is claimed.
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
from nova_gpu.core.availability import Reasons, Source, Unavailable
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.host.pci import iommu
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import former_drivers
from nova_gpu.host.vfio import passthrough
from nova_gpu.virt import threads
from nova_gpu.virt.delivery import bind_failures
from nova_gpu.virt.delivery.host_hooks import HostHooks
from nova_gpu.virt.usage.ledger import Ledger

LOG = logging.getLogger(__name__)

_JUDGED = Unavailable("it is inspected, as the host has it back", "", Source.BINDING)


class Bindings(HostHooks):
    """Changes the hands a host's cards are in, of each card one change at a time."""

    def __init__(self, roots: Roots, ledger: Ledger, folder: pathlib.Path) -> None:
        self._roots = roots
        self._judged_now: set[PciAddress] = set()
        self._ledger = ledger
        self._bind_failures = bind_failures.BindFailures(folder)
        self.share = threads.DaemonShare()
        # Those that giving back left with VFIO: they need not be asked about in every period.
        self._prepared: set[PciAddress] = set()
        self._is_settled = False
        # What was begun, and for which instance; until its guest is started.
        self._begun: dict[PciAddress, tuple[str, futurist.Future[None]]] = {}
        # What was said last, and how often it was so since.
        self._failures: dict[PciAddress, tuple[str, int]] = {}

    def begin(self, card: GPU, instance_uuid: str) -> None:
        """Begin to bind *card* while Nova prepares the rest of the instance."""
        if not passthrough.is_with_vfio(card, self._roots):
            begun = threads.begin(self.give_to_guests, card)
            self._begun[card.address] = (instance_uuid, begun)

    def end(self, card: GPU, instance_uuid: str) -> None:
        """Give *card* to the instance's guest, by what was begun where something was.

        :raises BindingFailed: where one of its functions cannot be bound
        """
        uuid, begun = self._begun.pop(card.address, (instance_uuid, None))
        if begun is not None and uuid == instance_uuid:
            begun.result()
        # The host may have had it back meanwhile: it was not known yet whose it was.
        self.give_to_guests(card)

    def give_to_guests(self, card: GPU) -> None:
        """Bind the functions of *card* that are not with VFIO yet.

        :raises BindingFailed: where one of them cannot be
        """
        with self._part_for(card), _lock(card.address):
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

    def _part_for(self, card: GPU) -> contextlib.AbstractContextManager[None]:
        """Return what binding it takes of privsep's daemon.

        Before its lock, as who cleans it has it.
        """
        if passthrough.is_with_vfio(card, self._roots):
            return contextlib.nullcontext()
        return self.share.one()

    def unavailable(self) -> Mapping[PciAddress, Reasons]:
        """Return the cards that could not be bound when they were last needed.

        Those that are inspected now, after they were given back, are among them.
        """
        judged = dict.fromkeys(tuple(self._judged_now), (_JUDGED,))
        return {**judged, **self._bind_failures.unavailable()}

    def forgive(self, address: PciAddress) -> None:
        """Take the card from :meth:`unavailable`: something else keeps it from instances."""
        self._bind_failures.forget(address)

    def looked(self, cards: Collection[GPU], stay: Collection[PciAddress] = ()) -> None:
        """Return unassigned *cards* to the host's drivers, except those that are to *stay*.

        Call it after reading the database. After the first time those that an instance here has,
        stopped as it may be, are taken again: a host boot gave them to the host's drivers.
        """
        counted = device.cards(self._ledger.now.counted())
        self._bind_failures.prune()
        if not self._is_settled:
            self._is_settled = True
            self._take_again(card for card in cards if card.address in counted)
        self.cleaned(card for card in cards if card.address not in counted.union(stay))
        self._give_back_others(counted.union(card.address for card in cards))

    def _take_again(self, cards: Iterable[GPU]) -> None:
        for card in cards:
            try:
                with boundary.crossed(exception.BindingFailed):
                    self.give_to_guests(card)
            except exception.BindingFailed:
                pass  # said, and tried again at its start
            except boundary.Failure as error:
                LOG.error("Failed to bind GPU %s to vfio-pci: %s", card.address, error)

    def cleaned(self, cards: Iterable[GPU]) -> None:
        """Return unassigned *cards* to the drivers they were taken from."""
        for card in cards:
            with _lock(card.address):
                # Asked under the lock: a start that began meanwhile keeps its card.
                if card.address in self._prepared | self._ledger.now.taken():
                    continue
                # One that the host did not take back may be with nobody: then its record tells.
                if card.address not in _recorded() and not self._has_any_with_vfio(card):
                    continue
                self._judged_now.add(card.address)
                try:
                    self._return(card)
                finally:
                    self._judged_now.discard(card.address)

    def _return(self, card: GPU) -> None:
        if not self._give_back(card.address):
            return
        if passthrough.is_with_vfio(card, self._roots):
            self._prepared.add(card.address)
        else:
            LOG.info("Returned GPU %s to the host's drivers", card.address)
            self.judge(card)

    def _give_back_others(self, known: Collection[PciAddress]) -> None:
        """Give back the cards that the host does not offer any more, since an option was changed.

        One that is open to a guest stays.
        """
        for address in _recorded().difference(known):
            with _lock(address):
                self._give_back(address)

    def _give_back(self, address: PciAddress) -> bool:
        try:
            with boundary.crossed():
                nova_gpu.privsep.vfio.give_to_host(str(address))
        except boundary.Failure as error:
            self._report(address, error.error)
            return False
        self._failures.pop(address, None)
        return True

    def _report(self, address: PciAddress, error: Exception) -> None:
        """Log a failure once, and a process that has the card open only if it lasts: guests end."""
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
            return False  # gone, and with it whatever was bound


def _recorded() -> frozenset[PciAddress]:
    """Return the cards whose former drivers are recorded."""
    return former_drivers.recorded(nova_gpu.privsep.vfio.records())


def _lock(address: PciAddress) -> contextlib.AbstractContextManager[object]:
    return lockutils.lock(f"nova-gpu-binding-{address}", do_log=False)
