# SPDX-License-Identifier: Apache-2.0
"""The periodic look at a host's cards, whose failures do not reach instances without GPUs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator

from nova import exception as nova_exception
from nova.virt import virtapi as nova_virtapi
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import availability, boundary, device, exception
from nova_gpu.core.availability import Source, Unavailable
from nova_gpu.host import service_socket
from nova_gpu.virt.health.monitor import Watch
from nova_gpu.virt.health.xids import Xids
from nova_gpu.virt.inventory import discovery
from nova_gpu.virt.inventory.assignment import Assigned
from nova_gpu.virt.inventory.card_inventory import CardInventory
from nova_gpu.virt.inventory.discovery import Discovery
from nova_gpu.virt.inventory.neighbours import Neighbours
from nova_gpu.virt.lifecycle import left_domains
from nova_gpu.virt.lifecycle.lost_reasons import LostReasons
from nova_gpu.virt.lifecycle.proofs import Proofs
from nova_gpu.virt.lifecycle.releases import Releases
from nova_gpu.virt.lifecycle.stops import Stops
from nova_gpu.virt.lifecycle.vgpus import VGPUs
from nova_gpu.virt.repeated_warnings import Repeats
from nova_gpu.virt.reporter import Reporter
from nova_gpu.virt.usage import domains
from nova_gpu.virt.usage.ledger import Ledger
from nova_gpu.virt.usage.reader import UsageReader
from nova_gpu.virt.verify import migrations, repair
from nova_gpu.virt.verify.startup_check import Reconciliation

LOG = logging.getLogger(__name__)

UNREAD = Unavailable(
    "Nova's database has not said yet which cards instances have parts of", "", Source.SERVICE
)
UNSEEN = Unavailable(
    "the last look at this host's GPUs failed", "see nova-compute's log", Source.SERVICE
)
_LINKED = (
    "direct links join it with {peer}, which is given in parts, and a guest would reach that over "
    "them; see [gpu]split_link_groups"
)


@contextlib.contextmanager
def contained(what: str) -> Iterator[None]:
    """Log any error of the block, and go on: instances without GPUs go through it as well.

    :param what: what failed and what follows from it, for the log
    """
    try:
        yield
    except Exception:  # a period goes on with what else there is, and Nova's own part of it
        LOG.exception("%s. This is a bug, please report it", what)


@dataclasses.dataclass(frozen=True, slots=True)
class Periods:
    """The looks of a service at its host: one when it starts, and one in each period."""

    host: libvirt_host.Host
    virtapi: nova_virtapi.VirtAPI
    ledger: Ledger
    discovery: Discovery
    watch: Watch
    published: CardInventory
    vgpus: VGPUs
    assigned: Assigned
    neighbours: Neighbours
    proofs: Proofs
    usage_reader: UsageReader
    reporter: Reporter
    releases: Releases
    stops: Stops
    parts: Callable[[], domains.Parts]
    reconciliation: Reconciliation
    lost_reasons: LostReasons
    repeats: Repeats
    xids: Xids
    abandoned: migrations.AbandonedMoves
    orphans: migrations.Orphans

    def begin(self) -> None:
        """Read the host at service start, before guests are resumed, and make what cards lack.

        :raises nova.exception.InvalidConfiguration: where another nova-compute gives the same cards
        """
        self._refuse_second()
        with contained("Which modules of their boards the GPUs are is not kept"):
            self.discovery.keep_modules()
        self.refresh(starting=True)
        if not self.discovery.roots.shows_all_processes():
            LOG.error(
                "nova-compute runs in its own PID namespace and cannot see the host's processes. "
                "VMs get no GPU that the host's driver holds, and no GPU counts as clean after a "
                "guest. Run its container in the host's PID namespace (pid_mode: host)."
            )
        with contained("Device nodes and libraries of guests were not looked at"):
            cards = (*self.published.cards(), *self.vgpus.containers_cards())
            self.discovery.ways.custody.began(cards, self.host)

    def _refuse_second(self) -> None:
        try:
            has_cards = bool(self.discovery.find())
        except exception.DiscoveryFailed:
            return  # nothing is offered before it can be read
        if has_cards and (other := service_socket.claim(self.discovery.roots)):
            raise nova_exception.InvalidConfiguration(
                f"another nova-compute ({other}) gives the GPUs of this host; stop it first, or "
                "have this one use Nova's own driver (compute_driver = libvirt.LibvirtDriver)"
            )

    def refresh(self, *, starting: bool = False) -> None:
        """Look at the host, at libvirt and at the database.

        What cannot be read stays as it was.

        If it fails for another reason, new instances get no card until a look succeeds.
        :param starting: look even where there is no card: an instance may have one that is gone
        """
        failed = "GPU discovery failed; no GPU is given to new instances until it succeeds"
        with (
            self.repeats.left_out(begins=True),
            contained(failed),
            contextlib.ExitStack() as failure,
        ):
            failure.callback(self._withhold)
            self._look(starting)
            failure.pop_all()

    def _withhold(self) -> None:
        """Offer no card to new instances until a look succeeds."""
        self._reserve_all(UNSEEN)
        self.vgpus.cards.reserve(dict.fromkeys(self.vgpus.cards.look.cards, (UNSEEN,)))

    def _reserve_all(self, reason: Unavailable) -> None:
        self.published.reserve({c.address: (reason,) for c in self.published.cards()})

    def _look(self, starting: bool) -> None:
        self.releases.write_again()
        self.releases.resume()
        self.neighbours.look_again()
        say = self.look_at_cards()
        if starting or self.assigned or self.published.provider_uuids:
            self.usage_reader.look_again()
            self.proofs.withdraw_used()
            if self.usage_reader.read_records():
                if starting and self.vgpus.divide():
                    say = self.look_at_cards()
                if starting and self.vgpus:
                    knows = self._knows_providers()
                    # Again: which cards are divided, and whose are whole, is known now.
                    say = self.look_at_cards()
                    if knows:
                        self.usage_reader.look_again()
                        self.vgpus.make_again()
                self._settle_reaching()
                self.releases.settle(starting=starting)
                # A card that could not be reset may take the host's driver with it.
                stay = self.published.reserved() | self.releases.left()
                self.discovery.ways.custody.looked(self.published.cards(), stay)
                self.discovery.ways.sets.part()
                if not starting:  # then Nova has not looked at its instances yet
                    self._end_moves()
                    self.lost_reasons.write()
                    self.stops.settle(self.ledger.now)
                self.reconciliation.look()
            elif self.ledger.now.records is None:
                self._reserve_all(UNREAD)
        self.discovery.ways.custody.domain_gone()
        say()
        cards = (*self.published.cards(), *self.vgpus.containers_cards())
        self.xids.look(cards, self.releases.quarantine_fault)
        self.vgpus.keep_failed()
        faulty = self.xids.unavailable(self.vgpus.cards.look.cards.values())
        self.vgpus.cards.reserve_parts(Source.XID, faulty)

    def _settle_reaching(self) -> None:
        """Note what guests reach that is not their own, and stop them where the operator wants it.

        Those with a task under way, and domains that are not Nova's, go on.
        """
        now = self.ledger.now
        if now.reached:
            try:
                domains.note_reached(self.host, now.reached)
            except exception.DomainsUnreadable as error:
                LOG.warning(
                    "%s. The GPUs that guests reach are not recorded in their domains.", error
                )
        if not CONF.gpu.stop_guests_that_reach_others or now.records is None:
            return
        reached = now.reached_of_others()
        reaching = (reached.keys() & now.instances()) - now.records.busy
        uuids = {uuid for uuid in reaching if not now.is_between(uuid)}
        if uuids:
            try:
                self.reporter.report_stopped(domains.stop(self.host, uuids), reached)
            except exception.DomainsUnreadable as error:
                LOG.error("%s. Guests that reach other GPUs than their own keep running.", error)
                return
            self.usage_reader.look_again()

    def _knows_providers(self) -> bool:
        try:
            with boundary.crossed():
                self.assigned.ask_for_providers()
        except boundary.Failure as error:
            LOG.warning(
                "Cannot create vGPUs now, will create them when their instances start: %s", error
            )
            return False
        return True

    def _end_moves(self) -> None:
        """Give back what Nova does not when it ended during a move."""
        left_domains.release(self.host, self.ledger.now, self.releases, self.parts)
        client, now = self.virtapi.reportclient, self.ledger.now
        if now.records and now.records.has_moves:
            self.abandoned.end(
                client, self.host.get_hostname(), lambda uuid: self.ledger.now.had_by(uuid)
            )
        classes = {
            uuid: device.resource_class_of(key)
            for key, uuid in self.assigned.provider_uuids().items()
        }
        if read := now.records:
            agrees = functools.partial(repair.heal, client, read, classes)
            self.orphans.release(client, frozenset(classes), read.counted, agrees)

    # The cards

    def look_at_cards(self) -> Callable[[], None]:
        """Look at the cards, and returns what says how they are, once it is known whose."""
        self.published.begin_look()
        try:
            gpus = self.discovery.find()
        except exception.DiscoveryFailed as error:
            LOG.error("%s. The former state of the GPUs stays in force.", error)
            return lambda: None
        given_whole = self.published.given_whole()
        divided = self.vgpus.cards.read(gpus, given_whole, self.vgpus.published.held_slots())
        # Outside of what every claim waits for: it may be slow.
        whole = [gpu for gpu in gpus if gpu.address not in divided]
        linked = {}
        for gpu in whole:
            peers = self.discovery.links.joined().get(gpu.address, frozenset())
            if gpu.address not in given_whole and (parted := peers & divided.keys()):
                linked[gpu.address] = _LINKED.format(peer=min(parted))
        of_cards = availability.merge(
            self.discovery.quarantined(gpus), self.releases.unavailable(), self.watch.look(gpus)
        )
        self.vgpus.cards.judge(of_cards)
        unavailable = availability.merge(
            of_cards,
            discovery.of_all(Source.DIVISION, linked),
            self.discovery.unavailable(whole, given_whole),
            divided,
            self.discovery.divided_since(gpu for gpu in whole if gpu.address in given_whole),
        )
        # Before any of them is offered
        shared = self.vgpus.shared_with_containers()
        refused = {a for a, own in unavailable.items() if availability.of_host(own)}
        self.proofs.judge((gpu for gpu in whole if gpu.address not in refused), shared)
        self.published.take_in(gpus, self.discovery.delivery.mode, unavailable)
        others = [gpu for gpu in gpus if not self.vgpus.cards.look.has(gpu.address)]
        return lambda: self.reporter.report(
            others, unavailable, self.published.groups(), self.published.owners()
        )
