# SPDX-License-Identifier: Apache-2.0
"""The publication of a host's GPUs to Placement and to the scheduler."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

from nova.compute import provider_tree as nova_provider_tree

from nova_gpu.virt import periodic
from nova_gpu.virt.inventory import provider_tree, stranding
from nova_gpu.virt.inventory.assignment import InstanceDevices
from nova_gpu.virt.inventory.tracker import Tracker
from nova_gpu.virt.lifecycle.releases import Releases
from nova_gpu.virt.repeated_warnings import Repeats
from nova_gpu.virt.reporter import Reporter
from nova_gpu.virt.usage.ledger import Ledger
from nova_gpu.virt.usage.reader import UsageReader
from nova_gpu.virt.verify import repair
from nova_gpu.virt.verify.startup_check import Reconciliation


@dataclasses.dataclass(frozen=True, slots=True)
class Publication:
    """The publication of one host's GPUs, as the last period found them.

    :param hypervisor_type: return the hypervisor type that the host reports to Nova, ``LXC`` or
        ``QEMU``
    """

    assigned: InstanceDevices
    tracker: Tracker
    ledger: Ledger
    usage_reader: UsageReader
    reporter: Reporter
    releases: Releases
    reconciliation: Reconciliation
    repeats: Repeats
    hypervisor_type: Callable[[], str]

    def update_provider_tree(self, tree: nova_provider_tree.ProviderTree, nodename: str) -> None:
        """Write the host's GPU groups into the provider tree, without reading the host.

        Nova calls this inside every claim. If it fails, claims of the host's GPUs fail.
        """
        with self.repeats.left_out():
            repair.heal_doubtful(self.assigned.placement, self.ledger, self.assigned.classes())
            with periodic.contained("Failed to publish all of this host's GPUs to Placement"):
                with contextlib.ExitStack() as failure:
                    refuse = provider_tree.refuse_claims
                    failure.callback(lambda: refuse(tree, nodename, self.ledger.now.recorded))
                    self.assigned.card_inventory.publish(tree, nodename, self.hypervisor_type())
                    self.assigned.vgpu_inventory.publish(tree, nodename, self.hypervisor_type())
                    self._reserve(tree, nodename)
                    failure.pop_all()
                self.assigned.keep_providers(nodename)
                usage = self.ledger.now
                self.reporter.report_reached(usage, self.releases.products)
                self.reporter.report_strangers(usage.strangers(), usage.unjudged(), usage.reached)
                self.reporter.report_shared(self.usage_reader.opened)
                self.reconciliation.is_due = True
            with periodic.contained(
                "Nova's own PCI passthrough may choose devices far from the free GPUs"
            ):
                self.assigned.card_inventory.sort_neighbours()
            with periodic.contained(
                "An instance that leaves this host may keep a function that it had by an alias here"
            ):
                self.tracker.save_freed()
            self.tracker.renew_report(nodename, self.stats())

    def _reserve(self, tree: nova_provider_tree.ProviderTree, nodename: str) -> None:
        """Reserve what instances lack of the node; note what is reserved for other reasons."""
        usage, classes = self.ledger.now, self.assigned.classes()
        node = provider_tree.reserve(tree, nodename, usage.lacking().values())
        reserves = {tree.data(nodename).uuid: node}
        for uuid, devices in usage.uncovered_by_provider().items():
            if devices and uuid in classes:
                inventory = tree.data(uuid).inventory
                reserves[uuid] = {
                    name: max(inventory[name]["reserved"] - len(devices), 0)
                    for name in classes[uuid]
                    if name in inventory
                }
        self.ledger.published(reserves)
        provider_tree.reserve_stock(tree, nodename, usage.allocated)

    def stats(self) -> str | None:
        """Return this host's GPU report for the scheduler.

        Return ``None`` if the host has no GPUs, or the report failed. Then the scheduler sends no
        instance with GPUs to this host.
        """
        with periodic.contained(
            "Failed to report this host's GPUs to the scheduler, which sends none to it"
        ):
            if self.assigned:
                reserved, divided = stranding.reserved(), self.assigned.vgpu_inventory.divided()
                return self.assigned.card_inventory.report(
                    self.hypervisor_type(), reserved, divided
                )
        return None
