# SPDX-License-Identifier: Apache-2.0
"""A guest gives its GPUs back: they are cleaned, and free or in quarantine.

That is when its domain goes for good: the instance is deleted, shelved and offloaded, confirmed or
evacuated to be elsewhere, moved there as it ran, reverted from here, or its start has failed. Where
the domain goes only to come back (hard reboot, rescue, rebuild) nothing is done. Which cards it had
is told by the domain and never by ``instance.resources``, which may name another host's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator

from nova import objects
from nova.compute import task_states
from oslo_log import log as logging

from nova_gpu.core import device, exception, health
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, PciAddress, Product
from nova_gpu.host.state import quarantine
from nova_gpu.host.state.quarantine import Seen
from nova_gpu.virt import counters, reporter, threads
from nova_gpu.virt.inventory import discovery, published_cards
from nova_gpu.virt.lifecycle import cleaning, vgpus
from nova_gpu.virt.usage import reader
from nova_gpu.virt.usage.ledger import Ledger, Owner

LOG = logging.getLogger(__name__)

_REBUILDING = (
    task_states.REBUILDING,
    task_states.REBUILD_BLOCK_DEVICE_MAPPING,
    task_states.REBUILD_SPAWNING,
)


class Releases:
    """:raises nova.exception.InvalidConfiguration: as
    :class:`nova_gpu.virt.lifecycle.cleaning.Cleaning`
    """

    def __init__(
        self,
        looked: discovery.Discovery,
        offered: published_cards.PublishedCards,
        ledger: Ledger,
        asked: reader.UsageReader,
        said: reporter.Reporter,
        mended: Callable[[PciAddress], None],
        parts: vgpus.VGPUs,
        close_nodes: Callable[[], None],
    ) -> None:
        """
        :param mended: called when a card was reset
        :param close_nodes: called when a domain has gone: what no other has is not for everybody
        """
        self._close_nodes = close_nodes
        self._vgpus = parts
        self._delivery = looked.delivery
        self._roots = looked.roots
        self._folder = looked.quarantine
        self._discovery = looked
        self._published = offered
        self._ledger = ledger
        self._usage_reader = asked
        self._reporter = said
        self._mended = mended
        self._is_resumed = False
        self._cleaning = cleaning.Cleaning(looked.delivery, looked.roots)

    @contextlib.contextmanager
    def domain_goes(
        self, instance: objects.Instance, recorded: Collection[Device] = ()
    ) -> Iterator[None]:
        """Wrap the removal of a domain: its GPUs are free for the next claim when this ends, not a
        period later.

        :param recorded: what Nova counted for it here, which no domain may have named
        """
        if not self._published.groups() and not self._vgpus:
            yield
            return
        usage = self._ledger.now
        had = usage.had_by(instance.uuid).union(recorded)
        reached = usage.reached.get(instance.uuid, frozenset())
        rebuilding = _is_rebuilding(instance)
        comes_back = rebuilding or usage.is_starting(instance.uuid)
        cards = [] if comes_back else self._cards(had)
        products = {} if comes_back else self.products(had - reached)
        if rebuilding:
            # Before its domain goes, so that at no moment nobody seems to have them.
            self._ledger.keep(instance.uuid, had)
        with self._noted(cards):
            try:
                yield
            finally:
                self._usage_reader.look_again()
                if not comes_back:
                    self._ledger.let_go(instance.uuid)
        if not comes_back:
            self._close_nodes()
        self._release_all(cards, Owner(instance.uuid, instance.project_id))
        self._reporter.released(instance, products)
        if not comes_back:
            self._vgpus.release(had, self._cleaning.clean_part, instance.uuid)

    def confirmed(self, instance: objects.Instance) -> None:
        """A resize is over. If it was one on this host, the guest has other cards than before and
        its domain did not go."""
        if instance.migration_context is not None:
            old = instance.migration_context.old_resources or ()
            addresses, slots = self._published.devices(old), self._vgpus.published.devices(old)
            products = self.products({*addresses, *slots})
            self._release_all(self._cards(addresses), Owner(instance.uuid, instance.project_id))
            self._reporter.released(instance, products)
            self._vgpus.release(slots, self._cleaning.clean_part, instance.uuid)

    def products(self, devices: Collection[Device]) -> dict[Device, Product]:
        """The products of the groups of those of *devices* that are known here"""
        whole: dict[Device, Product] = {
            address: group.product
            for group in self._published.groups().values()
            for address in group.gpus.keys() & devices
        }
        return whole | self._vgpus.products(devices)

    def resume(self) -> None:
        """What an earlier service was about to clean when it ended is still to be cleaned, and what
        was in quarantine until the host has booted is not any more. Done once."""
        if self._is_resumed:
            return
        try:
            found = self._discovery.find()
        except exception.DiscoveryFailed:
            return  # nothing is offered before it can be read
        counters.begin(self._folder.parent)
        with contextlib.suppress(OSError):  # then they stay
            boot_id = self._roots.boot_id()
            for over in quarantine.end_those_of_former_boots(self._folder, boot_id):
                LOG.info(
                    "GPU %s is no longer in quarantine, as the host has booted since: %s",
                    over.address,
                    over.reason,
                )
        with contextlib.suppress(OSError):  # then every card is kept back, with this as the reason
            self._follow(found)
            for entry in quarantine.load(self._folder).values():
                if entry.cleaning:
                    asked = (entry, found, self._roots, self._discovery.identities)
                    self._ledger.was_used(c.address for c in quarantine.cards_of(*asked))
        self._is_resumed = True

    def _follow(self, found: Collection[GPU]) -> None:
        """:raises OSError: where the folder cannot be read"""
        try:
            moved = quarantine.follow(self._folder, found, self._roots, self._discovery.identities)
        except OSError as error:
            LOG.warning("The files of GPUs in quarantine keep their former addresses: %s", error)
            return
        for old, new in moved:
            LOG.warning("GPU %s, of which gpu-quarantine has a file, is GPU %s now", old, new)

    def settle(self, *, starting: bool = False) -> None:
        """Cleans what guests had and nobody has any more, without its release having been seen:
        somebody else removed the domain, or the service had ended meanwhile.

        :param starting: not yet: no guest waits for it, and those that are to be resumed would
        """
        if starting:
            return
        left = self._ledger.now.left()
        self._vgpus.settle(left, self._cleaning.clean_part)
        self._release_all(self._cards(left))

    def left(self) -> frozenset[PciAddress]:
        """The cards that are nobody's and yet to be cleaned"""
        return device.cards(self._ledger.now.left())

    def quarantine(
        self,
        card: GPU,
        reason: str,
        remedy: str,
        owner: Owner | None = None,
        until_boot: str | None = None,
    ) -> None:
        """Put *card* into quarantine: no new instance gets it.

        :param owner: who has it, or had it last
        :param until_boot: the host's boot id, where another boot ends it
        :raises OSError: where that cannot be written down
        """
        LOG.error(
            "GPU %s is in quarantine: %s; %s. Then: nova-gpu quarantine release %s",
            card.address,
            reason,
            remedy,
            card.address,
        )
        new = quarantine.entry(card, reason, remedy, until_boot=until_boot, seen=self._seen(card))
        quarantine.put(self._folder, new)
        kept_back = self._discovery.quarantined([card])
        self._published.keep_back(kept_back)
        self._vgpus.cards.keep_back(kept_back)
        self._delivery.forgive(card.address)
        self._reporter.quarantined(card, f"{reason}; {remedy}", owner)

    def put_away(self, card: GPU, verdict: health.Verdict, until_boot: str | None) -> None:
        """Put a card that failed into quarantine, unless it is there already until it is released.

        :raises OSError: as :meth:`quarantine`
        """
        found = quarantine.load(self._folder).get(card.address)
        seen = self._seen(card)
        is_about = found and quarantine.is_about(found, card, seen.identity if seen else None)
        is_there = found and is_about and not found.cleaning
        if found and is_there and (until_boot or not found.until_boot):
            LOG.error("GPU %s is in quarantine already: %s", card.address, verdict.reason)
            return
        owner = self._published.owners().get(card.address)
        self.quarantine(card, verdict.reason, verdict.remedy, owner, until_boot)

    def _seen(self, card: GPU) -> Seen | None:
        return quarantine.see(card, self._roots, self._discovery.identities)

    def _cards(self, addresses: Collection[Device]) -> list[GPU]:
        return [card for card in self._published.cards() if card.address in addresses]

    @contextlib.contextmanager
    def _noted(self, cards: Iterable[GPU]) -> Iterator[None]:
        """Record on disk that these cards need cleaning, so that a restarted service resumes it."""
        used = [card for card in cards if card.address in self._ledger.now.used]
        for card in used:
            try:
                quarantine.begin_cleaning(self._folder, card, self._seen(card))
            except OSError as error:
                LOG.error("Cannot record that GPU %s needs cleaning: %s", card.address, error)
        try:
            yield
        finally:
            for card in used:
                if card.address in self._ledger.now.taken():
                    self._forget(card)

    def _forget(self, card: GPU) -> None:
        try:
            quarantine.end_cleaning(self._folder, card.address)
        except OSError as error:
            LOG.error("GPU %s is noted as one to be cleaned: %s", card.address, error)

    def _release_all(self, cards: Iterable[GPU], owner: Owner | None = None) -> None:
        """Side by side, of those that are nobody's now.

        :param owner: who had them, where that is known
        """
        if released := list(cards):
            threads.for_each(lambda card: self._release(card, owner), released)
            self._delivery.part()

    def _release(self, card: GPU, owner: Owner | None) -> None:
        # Another guest has it, or it is being cleaned already: then there is another release.
        with contextlib.suppress(exception.DeviceUnavailable):
            if card.address not in self._ledger.now.used or self._is_clean(card, owner):
                self._delivery.give_back([card])

    def _is_clean(self, card: GPU, owner: Owner | None) -> bool:
        """:raises DeviceUnavailable: where it is somebody's"""
        with self._ledger.clean(card.address):
            try:
                was_reset = self._cleaning.clean(card)
            except exception.NotClean as error:
                try:
                    self.quarantine(card, error.reason, error.remedy, owner)
                except OSError as failure:
                    # It stays one that is to be cleaned, and so out of the pool.
                    LOG.error("The quarantine of GPU %s was not noted: %s", card.address, failure)
                else:
                    self._ledger.cleaned(card.address)
                return False
            self._forget(card)
            self._ledger.cleaned(card.address)
        if was_reset:
            self._mended(card.address)
        LOG.info("GPU %s is clean", card.address)
        return True


def _is_rebuilding(instance: objects.Instance) -> bool:
    """Whether the guest goes only to come back with the same cards."""
    return instance.task_state in _REBUILDING
