# SPDX-License-Identifier: Apache-2.0
"""The GPUs of one compute host: the object that the driver calls, made of all the others."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

from nova import objects
from nova.virt import virtapi as nova_virtapi
from nova.virt.libvirt import host as libvirt_host

from nova_gpu.conf import CONF
from nova_gpu.host.roots import Roots
from nova_gpu.virt import diagnostics, libvirt_version
from nova_gpu.virt.health import failed_starts, monitor
from nova_gpu.virt.health.failed_starts import FailedStarts
from nova_gpu.virt.health.xids import Xids
from nova_gpu.virt.inventory.assignment import InstanceDevices
from nova_gpu.virt.inventory.card_inventory import CardInventory
from nova_gpu.virt.inventory.counting import Counting
from nova_gpu.virt.inventory.discovery import Discovery
from nova_gpu.virt.inventory.exchange import Exchange
from nova_gpu.virt.inventory.neighbours import Neighbours
from nova_gpu.virt.inventory.provider_tree import Providers
from nova_gpu.virt.inventory.tracker import Tracker
from nova_gpu.virt.lifecycle.lost_reasons import LostReasons
from nova_gpu.virt.lifecycle.proofs import Proofs
from nova_gpu.virt.lifecycle.refusals import Refusals
from nova_gpu.virt.lifecycle.releases import Releases
from nova_gpu.virt.lifecycle.start_steps import Starts
from nova_gpu.virt.lifecycle.stops import Stops
from nova_gpu.virt.lifecycle.vgpus import VGPUs
from nova_gpu.virt.live_migration.migrate_data import Moves
from nova_gpu.virt.offered_cards import Cards
from nova_gpu.virt.periodic import Periods
from nova_gpu.virt.publication import Publication
from nova_gpu.virt.repeated_warnings import Repeats
from nova_gpu.virt.reporter import Reporter
from nova_gpu.virt.usage import accounts, domains
from nova_gpu.virt.usage.ledger import Ledger
from nova_gpu.virt.usage.reader import UsageReader
from nova_gpu.virt.verify.startup_check import Reconciliation


class HostGPUs:
    """The GPUs of this host, for the driver.

    Their state is derived from sysfs, libvirt's domains and Nova's database. These are read when
    the service starts, in every period, and after a guest was started or removed. No claim waits
    for that.
    """

    def __init__(self, host: libvirt_host.Host, virtapi: nova_virtapi.VirtAPI) -> None:
        """Make the objects and connect them, in the order of their dependencies."""
        self._host = host
        nodename = host.get_hostname

        # Functions, because Nova connects to libvirt and makes its tracker and its client of
        # Placement after this object.
        def hypervisor_type() -> str:
            return str(host.get_driver_type())

        def placement() -> Any:
            return virtapi.reportclient

        def parts() -> domains.Parts:
            return domains.parts(
                card_inventory.cards(),
                host_discovery.roots,
                vgpus.divided(),
                vgpus.cards.undivided(),
                vgpus.by_guest(),
            )

        self.ledger = ledger = Ledger()
        self._discovery = host_discovery = Discovery(
            ledger,
            libvirt_version.LibvirtVersion(lambda: host.get_connection().getLibVersion()),
            libvirt_version.LibvirtVersion(lambda: host.get_connection().getVersion()),
        )
        reporter, repeats = Reporter(_accounts(host_discovery.roots)), Repeats()
        deliveries = host_discovery.deliveries
        watch = monitor.Watch(host_discovery.roots, asks_nvml=deliveries.whole.shares_driver)
        tracker = Tracker(lambda: virtapi._compute.rt)
        neighbours = Neighbours(tracker, host_discovery.roots)
        failed = FailedStarts(failed_starts.path(), host_discovery.roots)
        self._card_inventory = card_inventory = CardInventory(
            ledger, deliveries, host_discovery.joined_cards, neighbours, failed
        )
        proofs = Proofs(
            host_discovery.proofs, host_discovery.roots, host_discovery.identities, ledger
        )
        self.vgpus = vgpus = VGPUs(host_discovery, ledger, proofs, failed)
        providers = Providers(host_discovery.providers)
        self.assigned = assigned = InstanceDevices(
            card_inventory, vgpus.vgpu_inventory, providers, vgpus.keys, placement, nodename
        )
        usage = UsageReader(host, ledger, parts)
        reconciliation = Reconciliation(host_discovery, host, placement)
        self.releases = releases = Releases(
            host_discovery, card_inventory, ledger, usage, reporter, watch.mended, vgpus, proofs
        )
        deliveries.host_hooks.judge = functools.partial(
            monitor.quarantine_left_mig,
            roots=host_discovery.roots,
            quarantine=releases.quarantine_fault,
        )
        self.counting = counting = Counting(assigned, tracker, ledger)
        self.stops = stops = Stops(host, counting, releases, parts)
        lost_reasons = LostReasons()
        self.publication = Publication(
            assigned,
            tracker,
            ledger,
            usage,
            reporter,
            releases,
            reconciliation,
            repeats,
            hypervisor_type,
        )
        self.refusals = Refusals(deliveries, assigned, vgpus.cards, ledger)
        self.starts = Starts(
            deliveries,
            vgpus,
            usage,
            reporter,
            stops,
            self.refusals,
            Exchange(assigned, tracker, neighbours),
            lost_reasons,
        )
        self.moves = Moves(
            assigned, self.starts, vgpus, deliveries.sets, host_discovery.roots, nodename
        )
        xids = Xids(host_discovery.roots)
        cards = Cards(
            host_discovery, watch, card_inventory, vgpus, proofs, releases, reporter, xids
        )
        self.periods = Periods(ledger, cards, usage, stops, lost_reasons, reconciliation, repeats)

    @property
    def has_gpus(self) -> bool:
        return bool(self.assigned)

    @property
    def roots(self) -> Roots:
        return self._discovery.roots

    def diagnostics(self, guest: Any) -> dict[str, Any]:
        """Return facts of the guest's GPUs for the API (:func:`nova_gpu.virt.diagnostics.gpus`)."""
        modules = self._discovery.deliveries.sets.modules
        return diagnostics.gpus(guest, self.assigned, self.vgpus.cards, self.roots, modules)

    def end(self, instance: objects.Instance) -> None:
        """Stop a container that Nova is about to destroy, and wait until its processes have ended.

        Do nothing for other guests, and on a host without GPUs.

        :raises nova.exception.InstancePowerOffFailure: if its processes do not end
        """
        if self.has_gpus:
            self._discovery.deliveries.host_hooks.ending(self._host, instance)


def _accounts(roots: Roots) -> accounts.Accounts | None:
    """Return the accounts of this host's instances where the operator has usage audited."""
    folder = pathlib.Path(CONF.state_path)
    if not CONF.instance_usage_audit:
        accounts.forget(folder)
        return None
    try:
        boot_id = roots.boot_id()
    except OSError:
        boot_id = ""
    return accounts.Accounts(folder, boot_id)
