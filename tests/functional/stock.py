# SPDX-License-Identifier: Apache-2.0
"""A cloud of stock Nova on hosts with generated cards, which instances get by ``[pci]alias``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from nova import objects
from nova.scheduler.client import report

from nova_gpu.cmd import host_check, this_host
from nova_gpu.conf import CONF
from nova_gpu.stock.cmd import adopt, leave
from nova_gpu.stock.cmd import shadow as command
from nova_gpu.stock.virt import adoption, giving_back, shadow
from nova_gpu.virt.verify import gather
from tests.functional import test_kvm_aliases
from tests.functional.base import Server

STOCK, OURS = "libvirt.LibvirtDriver", "gpu.GPULibvirtDriver"


class StockTestBase(test_kvm_aliases.AliasesTestBase):
    """The hosts have stock Nova's driver; before they are looked over at the end, nova-gpu's."""

    def _setup_compute_service(self) -> None:
        self.flags(compute_driver=STOCK)
        self.device_spec(test_kvm_aliases.ALL_A2)

    def start_host(self, name: str = "host1", machine: str = "pairs-4", **kwargs: Any) -> None:
        kwargs.setdefault("pci_info", test_kvm_aliases.devices())
        super().start_host(name, machine, **kwargs)

    def period(self, name: str = "host1") -> None:
        if hasattr(self.computes[name].driver, "_gpus"):
            super().period(name)
        else:
            self.one_period(name)

    def take_driver(self, driver: str = OURS) -> None:
        """Restart nova-compute of all hosts with *driver*."""
        self.flags(compute_driver=driver)
        for name in list(self.computes):
            self.restart_host(name)

    def tearDown(self) -> None:
        self.delete_everything()
        self.device_spec()
        self.take_driver()
        super().tearDown()

    def has(self, server: Server) -> list[str]:
        """Return the cards that the guest has by an alias."""
        return [f"0000:{bus[2:]}:00.0" for bus in self.by_alias(server)]

    @contextlib.contextmanager
    def reading(self, host: str) -> Iterator[gather.Sources]:
        """Wrap a reading of the host as ``nova-gpu shadow`` reads it."""
        driver = self.computes[host].driver
        self._point_options_at(host)
        spec = CONF.pci.device_spec
        with self.on(host), self._state_of(host):
            command.leave_out_stock()
            try:
                discovered = this_host.discover()
                unavailable = functools.partial(host_check.unavailable, discovered)
                placement = report.SchedulerReportClient()
                yield gather.Sources(discovered, driver._host, placement, unavailable)
            finally:
                self.device_spec(*spec)

    def look(self, host: str = "host1") -> shadow.Shadow:
        """Return what ``nova-gpu shadow`` finds on *host*."""
        with self.reading(host) as sources:
            return shadow.look(sources)

    def takeover(self, host: str = "host1") -> adoption.Takeover:
        """Return the takeover of ``nova-gpu adopt`` on *host*."""
        node = objects.ComputeNode.get_by_host_and_nodename(self.context, host, host)
        client = report.SchedulerReportClient()
        return adoption.Takeover(self.context, client, node, adopt.groups(self.look(host)))

    def adopt(self, host: str = "host1") -> int:
        """Do as ``nova-gpu adopt --apply`` on *host*, whose nova-compute is stopped."""
        self.revoke_proofs(host)
        return adopt.take_over(self.takeover(host), self.look(host).holdings)

    def giving_back(self, host: str = "host1") -> giving_back.GivingBack:
        """Return the way back of ``nova-gpu leave`` on *host*."""
        node = objects.ComputeNode.get_by_host_and_nodename(self.context, host, host)
        client, seen = report.SchedulerReportClient(), self.look(host)
        gpus = (card.gpu for card in seen.cards)
        return giving_back.GivingBack(self.context, client, node, gpus, self.hosts[host].roots)

    def leave(self, host: str = "host1") -> int:
        """Do as ``nova-gpu leave --apply`` on *host*, whose nova-compute is stopped."""
        with self.reading(host) as sources:
            leave.check_clean(shadow.look(sources).cards, CONF.pci.device_spec, sources.host)
        status = leave.give_back(self.giving_back(host), self.look(host).leavings)
        self.revoke_proofs(host)
        return status

    def revoke_proofs(self, host: str) -> None:
        with self.reading(host) as sources:
            adopt.revoke_proofs(sources.host, shadow.look(sources))

    def proofs(self, host: str = "host1") -> list[str]:
        """Return the cards that have a proof that they are clean."""
        folder = self.state(host) / "gpu-clean"
        return sorted(path.name.removesuffix(".json") for path in folder.glob("*"))
