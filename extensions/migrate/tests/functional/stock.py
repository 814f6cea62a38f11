# SPDX-License-Identifier: Apache-2.0
"""A cloud of stock Nova on hosts with generated cards, which instances get by ``[pci]alias``."""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import unittest
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

import fixtures
from nova import objects
from nova.scheduler.client import report
from nova.tests.fixtures import libvirt as fakelibvirt

from nova_gpu.conf import CONF
from nova_gpu.host.pci import sysfs
from nova_gpu.host.vgpu import mdev
from nova_gpu.virt import libvirt_version
from nova_gpu.virt.inventory import discovery
from nova_gpu.virt.verify import gather
from nova_gpu_migrate.cmd import adopt, leave
from nova_gpu_migrate.cmd import shadow as command
from nova_gpu_migrate.core.stock_holding import StockHolding, StockReturn
from nova_gpu_migrate.virt import adoption, leaving, providers, shadow
from tests.cloud import takeover
from tests.fixtures import hosts, mediated
from tests.functional import NOVA, aliases, divided, profiled
from tests.functional.readings import Server

STOCK, OURS = takeover.STOCK, takeover.OURS
# What differs at the end, by patterns of lines of databases.differences()
REMAINS = (
    *takeover.REMAINS,
    # On a host: how many cards were cleaned, and empty folders.
    r"host\d:/state/gpu-counters\.json( \(mode\))?: \(nothing\) -> .*",
    r"host\d:/(state/gpu-clean|state/gpu-vgpus|gpu-bindings) \(mode\): \(nothing\) -> drwxr-xr-x",
    # Stock Nova finds out the provider of a row that was there when it starts.
    r"cell\d\.pci_devices\[.*\]\.extra_info(: \{\} -> \(nothing\)|\.rp_uuid: \(nothing\) -> .*)",
    # Of a network card, for which Nova's stand-in for libvirt takes any card with functions
    r"cell\d\.pci_devices\[.*\]\.extra_info\.capabilities\.sriov\..*",
    # Of boots for which a host had no room
    r"cell\d\.compute_nodes\[.*\]\.stats\.failed_builds: .*",
)
# What differs while nova-gpu has the instances
MEANWHILE = (
    *REMAINS,
    *takeover.MEANWHILE,
    r"host\d:/state/gpu-(providers|clean/.*|vgpus/.*)( \(mode\))?: \(nothing\) -> .*",
    # Mediated devices stay; libvirt makes none of them after a boot of the host.
    r"host\d\.mdev\[.*\]\.persistent: True -> False",
    # The operator takes the types of free functions away.
    r"host\d:/sys/.*/nvidia/(creatable_vgpu_types|current_vgpu_type): .*",
)


class StockTestBase(aliases.AliasesTestBase):
    """The hosts have stock Nova's driver; before they are looked over at the end, nova-gpu's."""

    def _setup_compute_service(self) -> None:
        self.flags(compute_driver=STOCK)
        self.device_spec(aliases.ALL_A2)

    def start_host(self, name: str = "host1", machine: str = "pairs-4", **kwargs: Any) -> None:
        kwargs.setdefault("pci_info", aliases.devices())
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
        self.flags(enabled_mdev_types=[], group="devices")
        self.take_driver()
        super().tearDown()

    def has(self, server: Server, host: str = "host1") -> list[str]:
        """Return the cards that the guest has by an alias."""
        return [f"0000:{bus[2:]}:00.0" for bus in self.by_alias(server, host)]

    def rows(self, server: Server) -> list[str]:
        """Return the PCI functions that stock Nova's tracker counts for the instance."""
        rows = objects.PciDeviceList.get_by_instance_uuid(self.context, server["id"])
        return [row.address for row in rows]

    @contextlib.contextmanager
    def reading(self, host: str) -> Iterator[gather.Sources]:
        """Wrap a reading of the host as ``nova-gpu shadow`` reads it."""
        driver = self.computes[host].driver
        self._point_options_at(host)
        with self.on(host), self._state_of(host):
            with command.stock_left_out():
                version = libvirt_version.LibvirtVersion(
                    driver._host.get_connection().getLibVersion
                )
                discovered = discovery.Discovery(libvirt_version=version)
            unavailable = functools.partial(command.unavailable, discovered)
            placement = report.SchedulerReportClient()
            yield gather.Sources(discovered, driver._host, placement, unavailable)

    def look(self, host: str = "host1") -> shadow.Shadow:
        """Return what ``nova-gpu shadow`` finds on *host*."""
        with self.reading(host) as sources:
            return command.look(sources)

    def takeover(self, host: str = "host1") -> adoption.Takeover:
        """Return the takeover of ``nova-gpu adopt`` on *host*."""
        node = objects.ComputeNode.get_by_host_and_nodename(self.context, host, host)
        client, libvirt = report.SchedulerReportClient(), self.computes[host].driver._host
        return adoption.Takeover(self.context, client, node, libvirt, self.look(host))

    def adopt(self, host: str = "host1") -> int:
        """Do as ``nova-gpu adopt --apply`` on *host*, whose nova-compute is stopped."""
        holdings = self.look(host).holdings
        self.forget(host, holdings)
        return adopt.take_over(self.takeover(host), holdings)

    def giving_back(self, host: str = "host1") -> leaving.Leaving:
        """Return the way back of ``nova-gpu leave`` on *host*."""
        node = objects.ComputeNode.get_by_host_and_nodename(self.context, host, host)
        client, libvirt = report.SchedulerReportClient(), self.computes[host].driver._host
        seen, roots = self.look(host), self.hosts[host].roots
        return leaving.Leaving(self.context, client, node, libvirt, seen, roots)

    def leave(self, host: str = "host1") -> int:
        """Do as ``nova-gpu leave --apply`` on *host*, whose nova-compute is stopped."""
        with self.reading(host) as sources:
            leave.check_clean(shadow.look(sources).cards, CONF.pci.device_spec, sources.discovery)
        report = self.look(host)
        leave.check_consumers(report)
        leavings = report.leavings
        status = leave.give_back(self.giving_back(host), leavings)
        self.forget(host, leavings)
        return status

    def forget(self, host: str, items: Iterable[StockHolding | StockReturn]) -> None:
        with self.reading(host) as sources:
            adopt.forget(sources.discovery, command.look(sources), items)

    def proofs(self, host: str = "host1") -> list[str]:
        """Return the cards that have a proof that they are clean."""
        folder = self.state(host) / "gpu-clean"
        return sorted(path.name.removesuffix(".json") for path in folder.glob("*"))


@unittest.skipIf(NOVA < 31, "Nova before 2025.1 makes mediated devices without libvirt")
class StockMediatedTestBase(StockTestBase, divided.DividedServersTestBase):
    """Stock Nova divides two cards of host1 into mediated devices of one type."""

    TYPE = "nvidia-64"

    def setUp(self) -> None:
        self.devices: dict[str, mediated.Devices] = {}
        super().setUp()
        for name in ("create", "define"):
            target = f"nova.tests.fixtures.libvirt.Connection.nodeDevice{name.title()}XML"
            self.useFixture(fixtures.MonkeyPatch(target, getattr(mediated, name)))

    def _setup_compute_service(self) -> None:
        self.flags(compute_driver=STOCK)
        self.device_spec()
        self.divide()

    def divide(self, *, by_stock: bool = True) -> None:
        """Let stock Nova divide cards, or nova-gpu."""
        self.flags(enabled_mdev_types=[self.TYPE] if by_stock else [], group="devices")

    def start_host(self, name: str = "host1", machine: str = "", **kwargs: Any) -> None:
        cards = fakelibvirt.HostPCIDevicesInfo(num_pci=0, num_pfs=0, num_vfs=0)
        for address in (divided.FIRST, divided.SECOND):
            card = mediated.Card(address, lambda: self.hosts[name])
            cards.devices[f"pci_{address.replace(':', '_').replace('.', '_')}"] = card
        devices = mediated.Devices(lambda: self.hosts[name])
        kwargs |= {"pci_info": cards, "mdev_info": devices}
        self.devices[name] = devices
        divided.DividedServersTestBase.start_host(self, name, machine, **kwargs)

    def mediated(self, server: Server, host: str = "host1") -> list[str]:
        """Return the uuids of the mediated devices that the guest has."""
        return sorted(self.domain(server, host).xpath("devices/hostdev[@type='mdev']//@uuid"))

    def providers(self, host: str = "host1") -> list[str]:
        """Return the names of stock Nova's providers of mediated devices."""
        names = (provider["name"] for provider in self._get_all_providers())
        return sorted(name for name in names if name.startswith(f"{host}_pci_"))

    def counted_by_stock(self, mediated: Iterable[str]) -> dict[str, int]:
        """Return how many of these devices stock Nova counts, by its provider of their card."""
        devices = mdev.devices(self.hosts["host1"].roots)
        parents = collections.Counter(devices[uuid].parent for uuid in mediated)
        return {providers.name_of("host1", parent): n for parent, n in parents.items() if parent}


class StockFunctionsTestBase(StockTestBase, profiled.ProfiledServersTestBase):
    """Stock Nova gives virtual functions that the operator has given a vGPU type, by an alias."""

    L40S: ClassVar[dict[str, str]] = {"vendor_id": "10de", "product_id": "26b9"}
    # The functions that libvirt tells Nova, which have a type from the host's boot on
    FUNCTIONS: ClassVar[Sequence[str]] = profiled.FIRST[:2]
    TYPE = 1155

    def setUp(self) -> None:
        super().setUp()
        # Without a type Nova gives virtual functions, too.
        whole = {"device_type": "type-PF", "name": "whole"}
        aliases = [{**self.L40S, "name": "q"}, {**self.L40S, **whole}]
        self.flags(alias=list(map(json.dumps, aliases)), group="pci")

    def _setup_compute_service(self) -> None:
        self.flags(compute_driver=STOCK)
        self.give()

    def give(self, *, by_stock: bool = True) -> None:
        """Let stock Nova give the first card and its functions, or nova-gpu."""
        place = {"domain": ".*", "bus": "3b", "slot": "00", "function": "[04-7]"}
        spec = json.dumps({"address": place, "managed": "no"})
        self.device_spec(*([spec] if by_stock else []))

    def prepare(self, host: hosts.Host) -> None:
        super().prepare(host)
        for function in self.FUNCTIONS:
            sysfs.write(f"{host.path(function)}/nvidia/current_vgpu_type", str(self.TYPE), 10)

    def start_host(self, name: str = "host1", machine: str = "", **kwargs: Any) -> None:
        cards = fakelibvirt.HostPCIDevicesInfo(num_pci=0, num_pfs=0, num_vfs=0)
        for bus in dict.fromkeys(int(function[5:7], 16) for function in self.FUNCTIONS):
            facts: dict[str, Any] = {
                "bus": bus,
                "slot": 0,
                "numa_node": int(bus != 0x3B),
                "vf_ratio": 4,
                "vend_id": self.L40S["vendor_id"],
                "prod_id": self.L40S["product_id"],
            }
            cards.add_device("PF", function=0, iommu_group=bus, **facts)
            own = [int(item[-1]) for item in self.FUNCTIONS if int(item[5:7], 16) == bus]
            for number in own:
                parent = (bus, 0, 0)
                group = bus + number
                cards.add_device("VF", function=number, iommu_group=group, parent=parent, **facts)
        profiled.ProfiledServersTestBase.start_host(self, name, machine, pci_info=cards, **kwargs)


class Adopting(StockTestBase):
    HOSTS = ("host1",)

    def change_driver(self) -> None:
        """Stop nova-compute of host1, and make its options nova-gpu's."""
        self.computes["host1"].stop()
        self.device_spec()

    def finish(self) -> None:
        """Take over what is left, and start nova-compute."""
        self.assertEqual(0, self.adopt())
        self.take_driver()
        self.period()

    def assertAdopted(self, server: Server, cards: list[str]) -> None:
        """Check that Nova and Placement count *cards*, and that nothing of stock Nova is left."""
        self.assertEqual(cards, self.recorded(server))
        self.assertEqual({"host1": len(cards)}, self.allocated(server))
        self.assertEqual([], self.rows(server))
        instance = objects.Instance.get_by_uuid(
            self.context, server["id"], expected_attrs=["flavor", "pci_requests"]
        )
        spec = objects.RequestSpec.get_by_instance_uuid(self.context, server["id"])
        for record in (instance, spec):
            self.assertEqual(f"= {len(cards)}", record.flavor.extra_specs["gpus"])
            self.assertNotIn("pci_passthrough:alias", record.flavor.extra_specs)
            self.assertEqual([], list(record.pci_requests.requests))
