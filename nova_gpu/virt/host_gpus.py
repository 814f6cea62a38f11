# SPDX-License-Identifier: Apache-2.0
"""The GPUs of one compute host: what it has, what it offers, and who has what."""

from __future__ import annotations

import contextlib
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

from nova import exception as nova_exception
from nova import objects
from nova.compute import provider_tree as nova_provider_tree
from nova.compute import task_states
from nova.virt import virtapi as nova_virtapi
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import device, exception
from nova_gpu.core.availability import Source, Unavailable
from nova_gpu.host import service_socket
from nova_gpu.host.roots import Roots
from nova_gpu.virt import diagnostics, libvirt_version, periodic, repeats, reporter, sets
from nova_gpu.virt.health import monitor, xids
from nova_gpu.virt.inventory import (
    assigned,
    card_groups,
    discovery,
    neighbours,
    provider_tree,
    published_cards,
    stranding,
    tracker,
)
from nova_gpu.virt.lifecycle import (
    left_domains,
    lost_reasons,
    proofs,
    refusals,
    releases,
    starts,
    stops,
    vgpus,
)
from nova_gpu.virt.live_migration import moves
from nova_gpu.virt.usage import domains, ledger, reader
from nova_gpu.virt.verify import migrations, reconcile, repair

LOG = logging.getLogger(__name__)


class HostGPUs:
    """The GPUs of this host, for the driver.

    All of it is derived: from sysfs, from libvirt's domains, from Nova's database. Those are read
    at start, in every period and when a guest was started or removed, never while a claim waits.
    """

    def __init__(self, host: libvirt_host.Host, virtapi: nova_virtapi.VirtAPI) -> None:
        self._host = host
        self._virtapi = virtapi
        self.ledger = ledger.Ledger()
        self._reporter = reporter.Reporter()
        self._discovery = discovery.Discovery(
            self.ledger,
            libvirt_version.LibvirtVersion(lambda: host.get_connection().getLibVersion()),
            libvirt_version.LibvirtVersion(lambda: host.get_connection().getVersion()),
        )
        self.delivery = self._discovery.delivery
        self.sets = self._discovery.ways.sets
        self._custody = self._discovery.ways.custody
        self._watch = monitor.Watch(self.roots, asks_nvml=self.delivery.shares_driver)
        self._tracker = tracker.Tracker(lambda: virtapi._compute.rt)
        self._neighbours = neighbours.Neighbours(self._tracker, self.roots)
        self._published = published_cards.PublishedCards(
            self.ledger,
            self.delivery,
            self.sets,
            self._custody,
            self._discovery.links,
            self._neighbours,
        )
        self._proofs = proofs.Proofs(
            pathlib.Path(CONF.state_path, "gpu-clean"),
            self.roots,
            self._discovery.identities,
            self.ledger,
        )
        self.vgpus = vgpus.VGPUs(self._discovery, self.ledger, self._proofs)
        self.assigned = assigned.Assigned(
            self._published,
            self.vgpus.published,
            provider_tree.Providers(pathlib.Path(CONF.state_path, "gpu-providers")),
            lambda: (*self.groups, *self.vgpus.keys()),
            lambda: virtapi.reportclient,
            host.get_hostname,
        )
        self._step = periodic.Step(
            *(self._discovery, self._watch, self._published, self.vgpus, self._reporter),
            self._proofs,
            lambda: self.releases.unavailable(),
        )
        self._usage_reader = reader.UsageReader(host, self.ledger, self._parts)
        self._abandoned = migrations.AbandonedMoves(CONF.host)
        self._orphans = migrations.Orphans()
        self._reconciliation = reconcile.Reconciliation(
            self._discovery, host, lambda: virtapi.reportclient
        )
        self.releases = releases.Releases(
            self._discovery,
            self._published,
            self.ledger,
            self._usage_reader,
            self._reporter,
            self._watch.mended,
            self.vgpus,
            self._proofs,
        )
        self.stops = stops.Stops(
            host,
            self._tracker,
            self.releases,
            self.assigned,
            self._parts,
        )
        self._custody.judge = lambda card: monitor.quarantine_left_mig(
            card, self.roots, self.releases.quarantine_fault
        )
        self._xids = xids.Xids(self.roots)
        self._repeats = repeats.Repeats()
        self._lost_reasons = lost_reasons.LostReasons()
        self.starts = starts.Starts(
            self.assigned,
            self._discovery.ways,
            self.vgpus,
            self._proofs,
            self.ledger,
            self._usage_reader,
            self._reporter,
            self.stops,
            self.hypervisor_type,
            self.free,
            lambda: stranding.left(virtapi.reportclient, host.get_hostname()),
            self._neighbours.had_by,
            self._lost_reasons,
        )
        self.refusals = refusals.Refusals(self._discovery.ways, self.assigned, self.vgpus.cards)
        self.moves = moves.Moves(
            self.assigned, self.starts, self.vgpus, self.sets, self.roots, host.get_hostname
        )

    @property
    def groups(self) -> card_groups.CardGroups:
        return self._published.groups()

    @property
    def has_gpus(self) -> bool:
        """Whether it offers any, whole or in parts."""
        return bool(self.assigned)

    @property
    def roots(self) -> Roots:
        return self._discovery.roots

    def hypervisor_type(self) -> str:
        """Return what this host reports to Nova: ``LXC`` or ``QEMU``."""
        return str(self._host.get_driver_type())

    # Looking

    def begin(self) -> None:
        """Read the host at service start, before guests are resumed, and make what cards lack.

        :raises nova.exception.InvalidConfiguration: where another nova-compute gives the same cards
        """
        self._refuse_second()
        with periodic.contained("Which modules of their boards the GPUs are is not kept"):
            self._discovery.keep_modules()
        self.refresh(starting=True)
        if not self.roots.shows_all_processes():
            LOG.error(
                "nova-compute runs in its own PID namespace and cannot see the host's processes. "
                "VMs get no GPU that the host's driver holds, and no GPU counts as clean after a "
                "guest. Run its container in the host's PID namespace (pid_mode: host)."
            )
        with periodic.contained("Device nodes and libraries of guests were not looked at"):
            cards = (*self._published.cards(), *self.vgpus.containers_cards())
            self._custody.began(cards, self._host)

    def _refuse_second(self) -> None:
        try:
            has_cards = bool(self._discovery.find())
        except exception.DiscoveryFailed:
            return  # nothing is offered before it can be read
        if has_cards and (other := service_socket.claim(self.roots)):
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
        with self._repeats.left_out(begins=True), periodic.contained(failed):
            try:
                self._look(starting)
            except Exception:
                self._reserve_all(periodic.UNSEEN)
                self.vgpus.cards.reserve(
                    dict.fromkeys(self.vgpus.cards.look.cards, (periodic.UNSEEN,))
                )
                raise

    def _reserve_all(self, reason: Unavailable) -> None:
        self._published.reserve({c.address: (reason,) for c in self._published.cards()})

    def _look(self, starting: bool) -> None:
        self.releases.write_again()
        self.releases.resume()
        self._neighbours.look_again()
        say = self._step.look()
        if starting or self.has_gpus or self._published.provider_uuids:
            self._usage_reader.look_again()
            self._proofs.withdraw_used()
            if self._usage_reader.read_records():
                if starting and self.vgpus.divide():
                    say = self._step.look()
                if starting and self.vgpus:
                    knows = self._knows_providers()
                    # Again: which cards are divided, and whose are whole, is known now.
                    say = self._step.look()
                    if knows:
                        self._usage_reader.look_again()
                        self.vgpus.make_again()
                self._settle_reaching()
                self.releases.settle(starting=starting)
                # A card that could not be reset may take the host's driver with it.
                stay = self._published.reserved() | self.releases.left()
                self._custody.looked(self._published.cards(), stay)
                self.sets.part()
                if not starting:  # then Nova has not looked at its instances yet
                    self._end_moves()
                    self._lost_reasons.write()
                    self.stops.settle(self.ledger.now)
                self._reconciliation.look()
            elif self.ledger.now.records is None:
                self._reserve_all(periodic.UNREAD)
        self._custody.domain_gone()
        say()
        cards = (*self._published.cards(), *self.vgpus.containers_cards())
        self._xids.look(cards, self.releases.quarantine_fault)
        self.vgpus.keep_failed()
        faulty = self._xids.unavailable(self.vgpus.cards.look.cards.values())
        self.vgpus.cards.reserve_parts(Source.XID, faulty)

    def _settle_reaching(self) -> None:
        """Note what guests reach that is not their own, and stop them where the operator wants it.

        Those with a task under way, and domains that are not Nova's, go on.
        """
        now = self.ledger.now
        if now.reached:
            try:
                domains.note_reached(self._host, now.reached)
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
                self._reporter.report_stopped(domains.stop(self._host, uuids), reached)
            except exception.DomainsUnreadable as error:
                LOG.error("%s. Guests that reach other GPUs than their own keep running.", error)
                return
            self._usage_reader.look_again()

    def _knows_providers(self) -> bool:
        try:
            self.assigned.ask_for_providers()
        except Exception as error:  # whatever Placement or the way there raise
            LOG.warning(
                "Cannot create vGPUs now, will create them when their instances start: %s", error
            )
            return False
        return True

    def _end_moves(self) -> None:
        """Give back what Nova does not when it ended during a move."""
        left_domains.release(self._host, self.ledger.now, self.releases, self._parts)
        client, now = self._virtapi.reportclient, self.ledger.now
        if now.records and now.records.has_moves:
            self._abandoned.end(
                client, self._host.get_hostname(), lambda uuid: self.ledger.now.had_by(uuid)
            )
        classes = {
            uuid: device.resource_class_of(key)
            for key, uuid in self.assigned.provider_uuids().items()
        }
        if read := now.records:
            agrees = functools.partial(repair.heal, client, read, classes)
            self._orphans.release(client, frozenset(classes), read.counted, agrees)

    # Publishing

    def update_provider_tree(self, tree: nova_provider_tree.ProviderTree, nodename: str) -> None:
        """Write the groups into the tree, from what is known.

        Runs inside every claim.
        """
        with self._repeats.left_out():
            with periodic.contained("Placement may not be told of all of this host's GPUs"):
                try:
                    self._published.publish(tree, nodename, self.hypervisor_type())
                    self.vgpus.published.publish(tree, nodename, self.hypervisor_type())
                except Exception:
                    provider_tree.refuse_claims(tree, nodename, self.ledger.now.recorded)
                    raise
                self.assigned.keep_providers(nodename)
                usage = self.ledger.now
                self._reporter.report_reached(usage, self.releases.products)
                self._reporter.report_strangers(usage.strangers(), usage.unjudged(), usage.reached)
                self._reporter.report_shared(self._usage_reader.opened)
                self._reconciliation.is_due = True
            with periodic.contained("Nova's own passthrough takes any of its devices first"):
                free = self._published.free()
                self._neighbours.sort_pools(c for c in self._published.cards() if c.address in free)

    def stats(self) -> str | None:
        """Return what the scheduler reads of this host.

        ``None`` without GPUs or where that is not known: then no instance that asks for some is
        sent here.
        """
        with periodic.contained("The scheduler is not told of this host's GPUs"):
            if self.has_gpus:
                reserved, free = stranding.reserved(), self._published.free()
                divided = self.vgpus.published.divided()
                return card_groups.report(
                    *(self.groups, self.hypervisor_type(), free, reserved, divided),
                    functools.partial(sets.room, self.sets),
                    self._neighbours.beside_free,
                )
        return None

    def free(self) -> int:
        """Return the number of cards of which an instance could get one now, or a part."""
        return len(self._published.free()) + self.vgpus.published.divided().free

    # Guests

    def _parts(self) -> domains.Parts:
        """Return what a domain may name of the GPUs that are offered now."""
        undivided = self.vgpus.cards.undivided()
        return domains.parts(self._published.cards(), self.roots, self.vgpus.divided(), undivided)

    def diagnostics(self, guest: Any) -> dict[str, Any]:
        """Return the GPUs of a guest, as :func:`nova_gpu.virt.diagnostics.gpus`."""
        own = self.assigned, self.vgpus.cards, self.roots, self.sets.modules
        return diagnostics.gpus(guest, *own)

    @contextlib.contextmanager
    def start_or_stay(self, instance: objects.Instance, **kwargs: Any) -> Iterator[bool | None]:
        """Wrap a start that Nova ends in ERROR where it fails.

        Yield what :meth:`starts.Starts.starting` yields, and None where an instance that gave its
        GPUs back gets none: then the start does nothing, and fails later.
        """
        with contextlib.ExitStack() as stack:
            started: bool | None = None
            try:
                started = stack.enter_context(self.starts.starting(instance, **kwargs))
            except nova_exception.NovaException as error:
                stays = instance.task_state in (
                    task_states.RESCUING,
                    task_states.REBOOT_STARTED_HARD,
                )
                if not stays or not self.starts.is_released(instance):
                    raise
                self.refusals.refuse_start(instance, error)
            yield started

    @contextlib.contextmanager
    def rescuing(
        self, instance: objects.Instance, define_again: Callable[[], None]
    ) -> Iterator[bool]:
        """Wrap a rescue; yield whether it goes on. Where not, it does nothing, and fails later.

        :param define_again: called where the instance was given GPUs, as what unrescue starts is
            the domain as it is now
        """
        if self.refusals.is_rescue_refused(instance):
            yield False
            return
        with self.start_or_stay(instance) as again:
            if again:
                define_again()
            yield again is not None

    def end(self, instance: objects.Instance) -> None:
        """Wait for the end of a guest that Nova is about to destroy.

        A host without GPUs leaves it to Nova.

        :raises nova.exception.InstancePowerOffFailure: where it does not end
        """
        if self.has_gpus:
            self._custody.ending(self._host, instance)
