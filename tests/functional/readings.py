# SPDX-License-Identifier: Apache-2.0
"""What is true of a cloud's instances and GPUs, read where it is kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from unittest import mock

from lxml import etree
from nova import context as nova_context
from nova import objects
from nova.tests.functional.libvirt import base
from nova.virt.libvirt import blockinfo
from nova.virt.libvirt import driver as libvirt_driver

from nova_gpu.cmd import verify
from nova_gpu.conf import CONF
from nova_gpu.virt.verify import gather

Server = dict[str, Any]


class ReadingTestBase(base.ServersTestBase):  # type: ignore[misc]
    """Nova's own cloud, with ``nodes``: by host, the cards' addresses by their device nodes."""

    TOTAL: int

    def setUp(self) -> None:
        self.nodes: dict[str, Mapping[str, str]] = {}
        super().setUp()
        self.context = nova_context.get_admin_context()

    def assertGPUs(self, server: Server, addresses: Iterable[str], host: str = "host1") -> None:
        """Nova's database, the guest's XML and Placement say the same: *addresses* on *host*."""
        expected = sorted(addresses)
        self.assertEqual("ACTIVE", self._show_server(server)["status"])
        self.assertEqual(expected, self.recorded(server), "instance.resources")
        self.assertEqual(expected, self.rendered(server, host), "the domain's XML")
        self.assertEqual({host: len(expected)} if expected else {}, self.allocated(server))

    def recorded(self, server: Server) -> list[str]:
        """What the database says the instance holds"""
        resources = self.instance(server).resources or ()
        return sorted(resource.identifier for resource in resources)

    def domain(self, server: Server, host: str = "host1") -> Any:
        """The guest's domain as libvirt has it"""
        return etree.fromstring(self.guest(server, host).XMLDesc(0))

    def guest(self, server: Server, host: str = "host1") -> Any:
        """libvirt's own object of that domain"""
        return self.connection(host).lookupByUUIDString(server["id"])

    def connection(self, host: str = "host1") -> Any:
        """That of the host's driver to its libvirt"""
        return self.computes[host].driver._host.get_connection()

    def host_of(self, server: Server) -> str:
        return str(self._show_server(server)["OS-EXT-SRV-ATTR:host"])

    def log(self) -> str:
        """All that the services have logged"""
        return str(self.stdlog.logger.output)

    def rendered(self, server: Server, host: str = "host1") -> list[str]:
        """The GPUs whose nodes the domain names, each both as device and as mount."""
        domain = self.domain(server, host)
        chars = domain.xpath("devices/hostdev/source/char/text()")
        mounts = domain.xpath("devices/filesystem/source/@dir")
        nodes = {node for node in chars if re.fullmatch(r"/dev/nvidia\d+", node)}
        bound = {mount for mount in mounts if re.fullmatch(r"/dev/nvidia\d+", mount)}
        self.assertEqual(nodes, bound)
        return sorted(self.nodes[host][node] for node in nodes)

    def allocated(self, server: Server, resource_class: str = "PGPU") -> dict[str, int]:
        """How many GPUs, or vGPUs, Placement counts for the instance, by host"""
        amounts: dict[str, int] = {}
        for uuid, allocation in self._get_allocations_by_server_uuid(server["id"]).items():
            if amount := allocation["resources"].get(resource_class):
                name = self.placement.get(f"/resource_providers/{uuid}").body["name"]
                host = name.partition("_gpu_")[0]
                amounts[host] = amounts.get(host, 0) + amount
        return amounts

    def allocations(self, server: Server) -> dict[str, Any]:
        """What each provider counts for it"""
        allocations = self._get_allocations_by_server_uuid(server["id"])
        return {provider: allocation["resources"] for provider, allocation in allocations.items()}

    def groups(self, host: str = "host1") -> Mapping[str, str]:
        """The uuids of the host's groups of GPUs, by the product's id"""
        url = f"/resource_providers?in_tree={self.compute_rp_uuids[host]}"
        providers = self.placement.get(url, version="1.14").body["resource_providers"]
        matches = {
            provider["uuid"]: re.search("_gpu_...._(....)_(?:lxc|pci)$", provider["name"])
            for provider in providers
        }
        return {match[1]: uuid for uuid, match in matches.items() if match}

    def inventory(self, host: str = "host1") -> Mapping[str, int]:
        """Of the host's only group: total, reserved and used"""
        (uuid,) = self.groups(host).values()
        total, reserved, used = self.counts(uuid, "PGPU")
        return {"total": total, "reserved": reserved, "used": used}

    def counts(self, provider: str, resource_class: str = "VGPU") -> tuple[int, int, int]:
        """Total, reserved and used"""
        inventory = self._get_provider_inventory(provider)[resource_class]
        used: int = self._get_provider_usages(provider)[resource_class]
        return inventory["total"], inventory["reserved"], used

    def assertInventory(
        self, total: int | None = None, reserved: int = 0, used: int = 0, host: str = "host1"
    ) -> None:
        """:param total: by default all cards of a host whose machine is not named"""
        total = self.TOTAL if total is None else total
        expected = {"total": total, "reserved": reserved, "used": used}
        self.assertEqual(expected, self.inventory(host))

    def sources(self, host: str = "host1") -> gather.Sources:
        driver = self.computes[host].driver
        discovery, placement = driver._gpus._discovery, driver.virtapi.reportclient
        return gather.Sources(discovery, driver._host, placement, discovery.unavailable)

    def judge(self, host: str = "host1", *, mend: bool = False) -> verify.Verdict:
        """What ``nova-gpu verify`` finds there"""
        with self.on(host):
            return verify.judge(self.sources(host), mend=mend, again_after_s=0)

    def instance(self, server: Server) -> objects.Instance:
        """With all that rendering a guest looks at: nothing is loaded later, from another cell."""
        attributes = [
            *(
                "flavor",
                "metadata",
                "system_metadata",
                "info_cache",
                "device_metadata",
                "resources",
            ),
            *("numa_topology", "pci_devices", "pci_requests", "vcpu_model", "migration_context"),
        ]
        return objects.Instance.get_by_uuid(self.context, server["id"], expected_attrs=attributes)

    def xml(self, driver: libvirt_driver.LibvirtDriver, instance: objects.Instance) -> str:
        """The guest as *driver* would define it now"""
        image = instance.image_meta
        disks = blockinfo.get_disk_info(CONF.libvirt.virt_type, instance, image)
        # The metadata has the time in it.
        with mock.patch("nova.virt.libvirt.driver.time.time", return_value=1800000000.0):
            return str(driver._get_guest_xml(self.context, instance, [], disks, image))
