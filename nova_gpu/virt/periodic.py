# SPDX-License-Identifier: Apache-2.0
"""The periodic work on a host's GPUs; its failures do not affect instances without GPUs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from nova import exception as nova_exception
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

import nova_gpu.privsep
from nova_gpu.conf import CONF
from nova_gpu.core import boundary, device, exception
from nova_gpu.host import service_socket
from nova_gpu.virt import counters
from nova_gpu.virt.delivery import service
from nova_gpu.virt.inventory.assignment import InstanceDevices
from nova_gpu.virt.lifecycle import left_domains
from nova_gpu.virt.lifecycle.lost_reasons import LostReasons
from nova_gpu.virt.lifecycle.stops import Stops
from nova_gpu.virt.offered_cards import Cards
from nova_gpu.virt.repeated_warnings import Repeats
from nova_gpu.virt.reporter import Reporter
from nova_gpu.virt.usage import domains, stock_records
from nova_gpu.virt.usage.ledger import Ledger
from nova_gpu.virt.usage.reader import UsageReader
from nova_gpu.virt.verify import abandoned_moves, repair
from nova_gpu.virt.verify.abandoned_moves import AbandonedMoves
from nova_gpu.virt.verify.startup_check import Reconciliation

LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def contained(what: str) -> Iterator[None]:
    """Log any error that the block raises, and raise nothing.

    The caller runs in Nova's periodic task, on which instances without GPUs also depend.

    :param what: the text of the log: what failed, and what follows
    """
    try:
        yield
    except Exception:  # the rest of the period, and Nova's own part of it, must still run
        LOG.exception("%s. This is a bug, please report it", what)


@dataclasses.dataclass(frozen=True, slots=True)
class Periods:
    """The work on a host's GPUs in each period: when nova-compute starts, and periodically then."""

    ledger: Ledger
    cards: Cards
    usage_reader: UsageReader
    stops: Stops
    lost_reasons: LostReasons
    reconciliation: Reconciliation
    repeats: Repeats
    _abandoned: AbandonedMoves = dataclasses.field(
        default_factory=lambda: AbandonedMoves(CONF.host)
    )

    @property
    def assigned(self) -> InstanceDevices:
        return self.stops.counting.assigned

    def begin(self) -> None:
        """Read the host and prepare its cards at service start, before guests are resumed.

        :raises nova.exception.InvalidConfiguration: if another nova-compute on this host already
            gives its GPUs to guests, or may
        """
        reason = None
        with contained("Cannot tell whether another nova-compute offers the same GPUs"):
            reason = self._other_service()
        if reason:
            raise nova_exception.InvalidConfiguration(
                f"{reason}, or let this one use Nova's own driver (compute_driver = "
                "libvirt.LibvirtDriver)"
            )
        was_ours = False
        with contained("Cannot tell what another driver has left; free GPUs are cleaned again"):
            named = CONF.host, self.stops.host.get_hostname()
            stock_records.end(*named)
            was_ours = stock_records.was_ours(*named)
        if not was_ours:
            self.cards.proofs.distrust()
        self.refresh(starting=True)
        with contained("Failed to import what is needed later; do not upgrade below this service"):
            self._load()
        if not self.cards.discovery.roots.shows_all_processes():
            LOG.error(
                "nova-compute runs in its own PID namespace and cannot see the host's processes. "
                "VMs get no GPU that the host's driver holds, and no GPU counts as clean after a "
                "guest. Run its container in the host's PID namespace (pid_mode: host)."
            )
        with contained("Failed to check the device nodes and libraries of containers"):
            cards = (*self.assigned.card_inventory.cards(), *self.cards.vgpus.containers_cards())
            self.cards.discovery.deliveries.host_hooks.began(cards, self.stops.host)

    def _load(self) -> None:
        """Import now what is imported when it is used, here and in the privileged process.

        Once the package is upgraded, its files are another release's, until the service restarts.
        """
        service.load()
        nova_gpu.privsep.load()
        if self._has_groups():
            nova_gpu.privsep.loading.load()
            for gate in self.cards.discovery.gates:
                gate.load()

    def _other_service(self) -> str | None:
        """Return why another nova-compute gives this host's GPUs to guests already, or may."""
        try:
            if not self.cards.discovery.find():
                return None
        except exception.DiscoveryFailed:
            return None  # no card is offered before the host can be read
        try:
            other = service_socket.claim(self.cards.discovery.roots)
        except OSError as error:
            return (
                "cannot tell whether another nova-compute gives this host's GPUs to guests: "
                f"{error}; let this one list the kernel's sockets (the module unix_diag, "
                "AF_NETLINK in RestrictAddressFamilies of its unit) or read /proc"
            )
        if other is None:
            return None
        return (
            f"another nova-compute ({other}) already gives this host's GPUs to guests; stop it "
            "first"
        )

    def refresh(self, *, starting: bool = False) -> None:
        """Read the host, libvirt and Nova's database, and act on what has changed.

        If one of these sources cannot be read, nova-compute goes on with its last known state.
        After any other failure new instances get no card until a later call succeeds.

        :param starting: whether the service starts; then read all sources even if the host has no
            card, because an instance may have a card that is gone
        """
        failed = "GPU discovery failed; no GPU is given to new instances until it succeeds"
        with (
            self.repeats.left_out(begins=True),
            contained(failed),
            contextlib.ExitStack() as failure,
        ):
            failure.callback(self.cards.withhold)
            if self._look(starting) and self._has_groups():
                counters.period(self.assigned.free())
            failure.pop_all()

    def _has_groups(self) -> bool:
        """Return whether this host has cards, or had some that Placement still lists."""
        return bool(self.assigned or self.assigned.card_inventory.provider_uuids)

    def _look(self, starting: bool) -> bool:
        """Read the sources and act on changes; return whether all of them could be read."""
        is_read, releases, vgpus = True, self.cards.releases, self.cards.vgpus
        deliveries = self.cards.discovery.deliveries
        releases.write_again()
        releases.resume()
        say = self.cards.look()
        if starting or self._has_groups():
            is_read = self.usage_reader.look_again()
            self.cards.proofs.withdraw_used()
            if self.usage_reader.read_records():
                if starting and vgpus.division.divide():
                    say = self.cards.look()
                if starting:
                    knows = bool(vgpus) and self._knows_providers()
                    # Again, because the divided cards and the owners of whole cards are known now.
                    say = self.cards.look()
                    if knows:
                        self.usage_reader.look_again()
                        vgpus.make_again()
                reporter = self.cards.reporter
                # First: the time of what was lost without a word ended with the last period.
                reporter.report_usage(
                    self.ledger.now,
                    self.assigned.provider_uuids().values(),
                    releases.products,
                    self.cards.faulty,
                )
                reporter.settle_bills(lambda: self.ledger.now, releases.products)
                settle_reached(self.stops.host, self.ledger, self.usage_reader, reporter)
                releases.settle(starting=starting)
                # A card that could not be reset may take the host's driver with it.
                dirty = device.cards(self.ledger.now.left())
                stay = self.assigned.card_inventory.reserved() | dirty
                deliveries.host_hooks.looked(self.assigned.card_inventory.cards(), stay)
                deliveries.sets.part()
                if not starting:  # at the start Nova has not read its instances yet
                    self.stops.counting.tracker.forgive_builds(self.stops.host.get_hostname())
                    self._settle_moves()
                    self.cards.step_gates(self.ledger)
                    self.lost_reasons.write()
                    self.stops.settle(self.ledger.now)
                self.reconciliation.look()
            else:
                is_read = False
                if self.ledger.now.records is None:
                    self.cards.withhold_whole()
        deliveries.host_hooks.domain_gone()
        if say:
            say()
        self.cards.note_faults()
        return is_read and say is not None

    def _settle_moves(self) -> None:
        """Release GPUs that a failed or interrupted move left in domains and in Placement.

        Remove the GPUs from definitions of shut-off domains, and correct or delete allocations of
        GPUs. Raise nothing.
        """
        host, client = self.stops.host, self.assigned.placement()
        left_domains.release(host, self.ledger.now, self.cards.releases, self.stops.parts)
        now = self.ledger.now
        if now.records and now.records.migrations:
            self._abandoned.end(
                client, host.get_hostname(), lambda uuid: self.ledger.now.had_by(uuid), now.may_hold
            )
        if not self.usage_reader.read_allocations(client):
            return
        now = self.ledger.now
        if now.records is None or now.allocations is None:
            return
        is_written = abandoned_moves.release_orphans(client, now.allocations, now.instances())
        is_written |= repair.heal(client, now, self.assigned.classes())
        if is_written:
            self.usage_reader.read_allocations(client)

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


def settle_reached(
    host: libvirt_host.Host, ledger: Ledger, usage_reader: UsageReader, reporter: Reporter
) -> None:
    """Record in domains which GPUs of others they reach, and stop these guests.

    A container reaches a GPU if its device nodes lead to it, now or earlier since its start: the
    driver may give the number of a node to another card. The guests are stopped only if
    ``[gpu]stop_guests_that_reach_others`` is set. Instances with a task in progress, and domains
    that are not Nova's, keep running.
    """
    now = ledger.now
    if now.reached:
        try:
            domains.note_reached(host, now.reached)
        except exception.DomainsUnreadable as error:
            LOG.warning(
                "%s. The GPUs of others that guests reach are not recorded in their domains.",
                error,
            )
    if not CONF.gpu.stop_guests_that_reach_others or now.records is None:
        return
    reached = now.reached_of_others()
    reaching = (reached.keys() & now.instances()) - now.records.busy
    uuids = {uuid for uuid in reaching if not now.is_between(uuid)}
    if uuids:
        try:
            reporter.report_stopped(domains.stop(host, uuids), reached)
        except exception.DomainsUnreadable as error:
            LOG.error("%s. Guests that reach GPUs of others keep running.", error)
            return
        usage_reader.look_again()
