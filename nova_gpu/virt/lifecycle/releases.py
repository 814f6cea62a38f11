# SPDX-License-Identifier: Apache-2.0
"""Releases of a guest's GPUs: each GPU is cleaned, and then is free or in quarantine.

A release happens when the guest's domain is removed for good: its instance is deleted, shelved and
offloaded, evacuated, migrated live to another host or reverted from here, its resize to another
host is confirmed, or its start failed. If the domain is removed only to be defined again (hard
reboot, rescue, rebuild), the guest keeps its GPUs. Which devices to release is read from the domain
and not from ``instance.resources``, which may name another host's devices.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from nova import objects
from nova.compute import task_states
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import device, exception, unavailability
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, PciAddress, Product
from nova_gpu.core.unavailability import Reasons, Repair, Source, Unavailable
from nova_gpu.host.pci import identity
from nova_gpu.host.state import quarantine
from nova_gpu.host.state.quarantine import Entry, Seen
from nova_gpu.virt import counters, reporter, threads
from nova_gpu.virt.inventory.card_inventory import CardInventory
from nova_gpu.virt.inventory.discovery import Discovery
from nova_gpu.virt.lifecycle import cleaning
from nova_gpu.virt.lifecycle.proofs import Proofs
from nova_gpu.virt.lifecycle.vgpus import Retries, VGPUs
from nova_gpu.virt.usage import reader
from nova_gpu.virt.usage.ledger import Ledger, Owner

LOG = logging.getLogger(__name__)

# How long a period waits for its cleanings, which then go on in the background
_PATIENCE_S = 10.0
_PATIENCE_AT_START_S = 60.0

# The tasks during which the instance's next guest gets the same devices
_REBUILDING = (
    task_states.REBUILDING,
    task_states.REBUILD_BLOCK_DEVICE_MAPPING,
    task_states.REBUILD_SPAWNING,
)


class Releases:
    """The releases of GPUs by guests of one host, and the quarantine of the host's cards.

    A card in quarantine is not offered to new instances until the operator, or a host boot, ends
    it.

    :raises InvalidOption: as :class:`nova_gpu.virt.lifecycle.cleaning.Cleaning` does
    """

    def __init__(
        self,
        discovery: Discovery,
        card_inventory: CardInventory,
        ledger: Ledger,
        usage_reader: reader.UsageReader,
        reports: reporter.Reporter,
        mended: Callable[[PciAddress], None],
        vgpus: VGPUs,
        proofs: Proofs,
    ) -> None:
        """Store the arguments.

        :param mended: called with the address of each card that was reset
        """
        self._proofs = proofs
        self._retries = Retries(device.function)
        # The quarantine entries that could not be written, by the card's address.
        self._unwritten: dict[PciAddress, Entry] = {}
        self._vgpus = vgpus
        self._host_hooks = discovery.deliveries.host_hooks
        self._roots = discovery.roots
        self._folder = discovery.quarantine
        self._discovery = discovery
        self._card_inventory = card_inventory
        self._ledger = ledger
        self._usage_reader = usage_reader
        self._reporter = reports
        self._mended = mended
        self._is_resumed = self._is_settled = False
        self._compute_host = CONF.host
        self._cleaning = cleaning.Cleaning(discovery.delivery, discovery.roots)

    @contextlib.contextmanager
    def domain_goes(
        self, instance: objects.Instance, recorded: Collection[Device] = ()
    ) -> Iterator[None]:
        """Wrap the removal of the instance's domain; afterwards release its devices.

        If the domain is about to be defined again, the instance keeps its devices.

        :param recorded: further devices to release, which Nova's records assign to the instance on
            this host, even if no domain names them
        """
        if not self._card_inventory.groups() and not self._vgpus:
            yield
            return
        usage = self._ledger.now
        had = usage.had_by(instance.uuid).union(recorded)
        reached = usage.reached.get(instance.uuid, frozenset())
        # The destination of an evacuation becomes the instance's host only at the end.
        rebuilding = instance.task_state in _REBUILDING and instance.host == self._compute_host
        comes_back = rebuilding or usage.is_starting(instance.uuid)
        cards, products = self._cards(had), self.products(had - reached)
        if rebuilding:
            # Before its domain is removed, so that its devices never look free.
            self._ledger.keep(instance.uuid, had)
        try:
            yield
        finally:
            self._usage_reader.look_again()
            if not comes_back:
                self._ledger.end_move(instance.uuid)
        if comes_back:
            return
        # Before they are cleaned, which takes time: a service that dies meanwhile, and deletes the
        # instance anew when it starts, takes them for released.
        owner = Owner(instance.uuid, instance.project_id)
        self._reporter.released(owner, products)
        self._host_hooks.domain_gone()
        self._release_all(cards, owner)
        self._vgpus.release(had, self._cleaning.clean_part, instance.uuid)

    def confirmed(self, instance: objects.Instance) -> None:
        """Release the devices that the instance had here before its resize, now confirmed.

        After a resize on the same host no domain is removed that would release them.
        """
        if instance.migration_context is not None:
            old = instance.migration_context.old_resources or ()
            addresses, slots = (
                self._card_inventory.devices(old),
                self._vgpus.vgpu_inventory.devices(old),
            )
            products = self.products({*addresses, *slots})
            owner = Owner(instance.uuid, instance.project_id)
            self._release_all(self._cards(addresses), owner)
            self._reporter.released(owner, products)
            self._vgpus.release(slots, self._cleaning.clean_part, instance.uuid)

    def products(self, devices: Collection[Device]) -> dict[Device, Product]:
        """Return the product of each of *devices*, except of those that this host does not have."""
        whole: dict[Device, Product] = {
            address: group.product
            for group in self._card_inventory.groups().values()
            for address in group.gpus.keys() & devices
        }
        return whole | self._vgpus.cards.look.products(devices)

    def resume(self) -> None:
        """Bring the quarantine up to date at service start; retry in each period until it succeeds.

        End the quarantine of cards that a host boot releases, and rename entries of cards whose
        addresses have changed.
        """
        if self._is_resumed:
            return
        try:
            gpus = self._discovery.find()
        except exception.DiscoveryFailed:
            return  # no GPU is offered before sysfs can be read
        counters.begin(self._folder.parent)
        with contextlib.suppress(OSError):  # then these entries stay
            boot_id = self._roots.boot_id()
            for over in quarantine.end_those_of_former_boots(self._folder, boot_id):
                LOG.info(
                    "Released GPU %s from quarantine, as the host has booted; its reason was: %s",
                    over.address,
                    over.reason,
                )
        # The next period tries again what fails.
        with contextlib.suppress(OSError, exception.DeviceUnavailable):
            self._follow(gpus)
            for address in quarantine.to_clean(self._folder):
                # A proof is older than the note of a release that knew no proofs.
                self._proofs.revoke([address])
                quarantine.release(self._folder, address)
            self._is_resumed = True

    def _follow(self, gpus: Collection[GPU]) -> None:
        """Rename the quarantine files of cards whose addresses have changed, and log each."""
        try:
            moved = quarantine.follow(self._folder, gpus, self._roots, self._discovery.identities)
        except OSError as error:
            LOG.warning(
                "Failed to rename quarantine files of GPUs with new addresses; the GPUs stay in "
                "quarantine. Make the files writable and restart nova-compute: %s",
                error,
            )
            return
        for old, new in moved:
            LOG.warning("GPU %s, which is in quarantine, is now at address %s", old, new)

    def settle(self, *, starting: bool = False) -> None:
        """Clean the dirty devices that no guest has; call it in each period.

        They are left if another program removed the domain, if the service was down at the removal,
        or if an earlier cleaning must be retried. Wait a limited time for the cleanings; then they
        go on in the background.

        :param starting: whether the service starts: then do nothing, because guests that it is
            about to resume would have to wait
        """
        if starting:
            return
        left = self._ledger.now.left()
        self._vgpus.settle(left, self._cleaning.clean_part)
        cards = {card.address: card for card in self._cards(left)}
        for address in self._discovery.quarantined(cards.values()) if cards else ():
            del cards[address]
        # A card that was cleaned but whose proof could not be written is not cleaned again. A card
        # that is not on the host is cleaned when it is back.
        present = self._card_inventory.present()
        cards = {
            address: card
            for address, card in cards.items()
            if address in present and not self._proofs.is_cleaned(address)
        }

        def release(part: Device) -> bool:
            return self._release(cards[device.function(part)], None)

        self._retries.begin(cards, release)
        if self._is_settled:
            self._retries.wait(time.monotonic() + _PATIENCE_S)
        else:
            # After the service's start, no device may have a valid proof: wait longer.
            until = time.monotonic() + _PATIENCE_AT_START_S
            self._retries.wait(until)
            self._vgpus.retries.wait(until)
        self._is_settled = True
        for address in cards.keys() & self._ledger.now.cleaning:
            remedy = "see nova-compute's log if that lasts"
            self._proofs.lacking(address, "it is being cleaned", remedy, logging.WARNING)
        self._reserve(self.unavailable())
        if cards:
            self._discovery.deliveries.sets.part()

    def quarantine(
        self,
        card: GPU,
        reason: str,
        remedy: str,
        owner: Owner | None = None,
        until_boot: str | None = None,
        asks: Repair | None = None,
    ) -> None:
        """Put *card* into quarantine, so that new instances do not get it.

        :param owner: the instance that has the card, or had it last
        :param until_boot: the host's present boot id if the next boot is to end the quarantine;
            ``None`` if only the operator is to end it
        :param asks: the step of a repair that may end it, too
        :raises OSError: if the entry cannot be written; it still applies in this process
        """
        seen = self._seen(card)
        new = quarantine.entry(card, reason, remedy, until_boot=until_boot, seen=seen, asks=asks)
        LOG.error("GPU %s is in quarantine: %s; %s", card.address, reason, new.way_out)
        is_new = card.address not in self._unwritten
        self._unwritten[card.address] = new
        # Removing the proof needs no disk space: even if the entry cannot be written, the card is
        # not clean for a later service, nor for this one once the quarantine is released.
        self._proofs.withdraw(card)
        self._ledger.was_used([card.address])
        self._reserve({card.address: (_reason(new),)})
        self._host_hooks.forgive(card.address)
        if is_new:
            self._reporter.quarantined(card, f"{reason}; {remedy}", owner)
        try:
            self._write(new)
        except OSError as error:
            LOG.error(
                "Failed to write the quarantine entry of GPU %s, will retry in the next period: %s",
                card.address,
                error,
            )
            raise

    def unavailable(self) -> dict[PciAddress, Reasons]:
        """Return the reasons against cards without a proof, or whose quarantine is unwritten.

        The quarantine entries that are on disk are read elsewhere.
        """
        unsaved = f"that cannot be written to {self._folder}"
        reasons_by_card = {a: (_reason(new, unsaved),) for a, new in tuple(self._unwritten.items())}
        return unavailability.merge(reasons_by_card, self._proofs.unavailable())

    def _reserve(self, reasons: Mapping[PciAddress, Reasons]) -> None:
        self._card_inventory.reserve(reasons)
        self._vgpus.cards.reserve(reasons)

    def _write(self, new: Entry) -> None:
        """Write a quarantine entry, unless the card has one that lasts longer."""
        entry = _in_force(quarantine.load(self._folder).get(new.address))
        # An entry that ends at the host's boot does not replace one that an operator must release.
        if not (entry and new.until_boot and not entry.until_boot and _is_same_card(entry, new)):
            quarantine.put(self._folder, new)
        self._unwritten.pop(new.address, None)

    def write_again(self) -> None:
        """Write the proofs and quarantine entries that could not be written before."""
        self._proofs.write_again()
        for new in tuple(self._unwritten.values()):
            with contextlib.suppress(OSError):  # logged at the first attempt
                self._write(new)

    def quarantine_fault(self, card: GPU, fault: Unavailable, until_boot: str | None) -> None:
        """Put a faulty card into quarantine, unless it already is for at least as long.

        :raises OSError: as :meth:`quarantine` does
        """
        entry = None
        with contextlib.suppress(OSError):  # then a new entry is written
            entry = _in_force(quarantine.load(self._folder).get(card.address))
        seen = self._seen(card)
        is_about = entry and quarantine.is_about(entry, card, seen.identity if seen else None)
        if entry and is_about and (until_boot or not entry.until_boot):
            LOG.error("GPU %s is in quarantine already: %s", card.address, fault.reason)
            return
        owner = self._card_inventory.owners().get(card.address)
        self.quarantine(card, fault.reason, fault.remedy, owner, until_boot, fault.asks)

    def _seen(self, card: GPU) -> Seen | None:
        return quarantine.see([card], self._roots, self._discovery.identities).get(card.address)

    def _cards(self, addresses: Collection[Device]) -> list[GPU]:
        return [card for card in self._card_inventory.cards() if card.address in addresses]

    def _release_all(self, cards: Iterable[GPU], owner: Owner | None = None) -> None:
        """Clean those of *cards* that no guest has now, in parallel, and wait for it."""
        if released := list(cards):

            def release(card: GPU) -> None:
                self._release(card, owner)

            threads.for_each(release, released)
            self._discovery.deliveries.sets.part()

    def _release(self, card: GPU, owner: Owner | None) -> bool:
        """Clean *card* if it is dirty and no guest has it.

        Return ``False`` if that must be retried later; then the card is not offered.
        """
        try:
            if card.address not in self._ledger.now.used or self._is_clean(card, owner):
                self._host_hooks.cleaned([card])
        except exception.DeviceUnavailable:
            pass  # a guest has it, or it is being cleaned: a release follows
        except exception.NotCleanedYet as error:
            self._proofs.lacking(card.address, error.reason, error.remedy)
            return False
        except OSError:
            return False  # it stays dirty, so it is not offered
        return True

    def _is_clean(self, card: GPU, owner: Owner | None) -> bool:
        """Clean *card*, or put it into quarantine if that fails; return whether it is clean.

        :raises DeviceUnavailable: if an instance has the card, or it is being cleaned already
        :raises NotCleanedYet: if a driver or process does not release the card; retry later
        :raises OSError: if the proof or the quarantine entry cannot be written
        """
        with self._ledger.clean(card.address):
            try:
                was_reset = self._cleaning.clean(card)
            except exception.NotCleanedYet:
                raise
            except exception.NotClean as error:
                self._ledger.cleaned(card.address)
                self.quarantine(card, error.reason, error.remedy, owner, asks=Repair.BUS_RESET)
                return False
            if was_reset:
                self._mended(card.address)
            after = owner.instance_uuid if owner else None
            self._proofs.prove(card.address, card, cleaning.words(was_reset), after)
            self._ledger.cleaned(card.address)
        LOG.info("GPU %s is clean", card.address)
        return True


def _reason(new: Entry, *remedies: str) -> Unavailable:
    reason = f"it is in quarantine since {new.since}: {new.reason}"
    asks = Repair(new.asks) if new.asks else None
    return Unavailable(reason, "; ".join((new.way_out, *remedies)), Source.QUARANTINE, asks=asks)


def _in_force(entry: Entry | None) -> Entry | None:
    """Return *entry*, unless it only says that an older release had to clean the card."""
    return None if entry is None or entry.cleaning else entry


def _is_same_card(one: Entry, other: Entry) -> bool:
    if one.product != other.product or not (one.seen and other.seen):
        return False
    return identity.same(one.seen.identity, other.seen.identity) is not False
