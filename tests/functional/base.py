# SPDX-License-Identifier: Apache-2.0
"""A cloud in one process whose compute hosts are LXC hosts with generated GPUs."""

from __future__ import annotations

import contextlib
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from unittest import mock

import fixtures
from lxml import etree
from nova import context as nova_context
from nova import objects
from nova.tests.functional.libvirt import base
from nova.virt.libvirt import blockinfo
from nova.virt.libvirt import driver as libvirt_driver

from nova_gpu.conf import CONF
from tests.fixtures import hosts, libvirt, nodes

FIRST_SOCKET = ("0000:04:00.0", "0000:05:00.0", "0000:08:00.0", "0000:09:00.0")
SECOND_SOCKET = ("0000:84:00.0", "0000:85:00.0", "0000:88:00.0", "0000:89:00.0")
ALL = FIRST_SOCKET + SECOND_SOCKET

BLUEPRINT = {"gpus": "= 2", "gpu_arch": "s== fermi", "hypervisor": "s== LXC"}

Server = dict[str, Any]


class GPUServersTestBase(base.ServersTestBase):  # type: ignore[misc]
    """Compute hosts are started with :meth:`start_host`, each over a generated tree of its own.

    ``hosts[name]`` is the :class:`tests.fixtures.hosts.Host` behind a compute host: what a test
    changes there the driver sees at its next look.
    """

    microversion = "latest"
    ADMIN_API = True
    ADDITIONAL_FILTERS: tuple[str, ...] = ("GPUFilter",)

    def setUp(self) -> None:
        self.hosts: dict[str, hosts.Host] = {}
        self.nodes: dict[str, Mapping[str, str]] = {}
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.useFixture(libvirt.LXCFixture())
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova.virt.libvirt.driver.LibvirtDriver.migrate_disk_and_power_off",
                _migrate_disk_and_power_off,
            )
        )
        # A service reports for the first time 5 s after its start, on a context that its clean-up
        # uses too: in the midst of it the test fails with a transaction that is not its own.
        self.useFixture(fixtures.MonkeyPatch("nova.servicegroup.api.INITIAL_REPORTING_DELAY", 3600))
        self.flags(service_down_time=3600)
        self.flags(virt_type="lxc", group="libvirt")
        self.flags(uid_maps=["0:1000000:65536"], gid_maps=["0:1000000:65536"], group="libvirt")
        self.flags(nvml=False, group="gpu")
        self.flags(state_path=self.useFixture(fixtures.TempDir()).path)

    def _setup_compute_service(self) -> None:
        self.flags(compute_driver="gpu.GPULibvirtDriver")

    def _setup_scheduler_service(self) -> Any:
        self.flags(
            available_filters=[
                "nova.scheduler.filters.all_filters",
                "nova_gpu.scheduler.filters.GPUFilter",
            ],
            group="filter_scheduler",
        )
        enabled = [*CONF.filter_scheduler.enabled_filters, *self.ADDITIONAL_FILTERS]
        self.flags(enabled_filters=enabled, group="filter_scheduler")
        return self.start_service("scheduler")

    # Hosts

    def start_host(self, name: str = "host1", machine: str = "fermi-8") -> None:
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.hosts[name] = hosts.build(machine, root, nodes.Nodes.FILES)
        self.nodes[name] = _address_by_node(self.hosts[name])
        self._point_options_at(name)
        self.start_compute(name)

    def restart_host(self, name: str) -> None:
        """A new service with a new driver; libvirt and its domains stay."""
        self._point_options_at(name)
        self.restart_compute_service(name)

    def _point_options_at(self, name: str) -> None:
        """The options are the process's, but a driver reads them once, when it is made."""
        roots = self.hosts[name].roots
        self.flags(sysfs_root=str(roots.sysfs), group="gpu")
        self.flags(dev_root=str(roots.dev), group="gpu")
        self.flags(proc_root=str(roots.proc), group="gpu")
        self.flags(cdi_spec_dirs=[str(each) for each in roots.cdi_spec_dirs], group="gpu")

    def period(self, name: str = "host1") -> None:
        """One run of the periodic task that updates the host's resources."""
        with self.on(name):
            self.computes[name].manager.update_available_resource(self.context)

    def force_down(self, name: str) -> None:
        self.computes[name].stop()
        service = self.computes[name].service_ref.uuid
        self.admin_api.put_service_force_down(service, True)

    def bring_back(self, name: str) -> None:
        """The host comes back after :meth:`force_down`, its domains as they were."""
        service = self.computes[name].service_ref.uuid
        self.restart_host(name)
        self.admin_api.put_service_force_down(service, False)

    @contextlib.contextmanager
    def on(self, name: str) -> Iterator[None]:
        """CONF.host is the process's as well: the last host that was started."""
        before = CONF.host
        self.flags(host=name)
        try:
            yield
        finally:
            self.flags(host=before)

    # Flavors and servers

    def flavor(self, **extra_specs: str) -> str:
        small = {"memory_mb": 128, "vcpu": 1, "disk": 1, "ephemeral": 0}
        return str(self._create_flavor(**small, extra_spec=extra_specs))

    def gpu_flavor(self, gpus: int) -> str:
        return self.flavor(gpus=f"= {gpus}")

    def boot(self, flavor: str, **kwargs: Any) -> Server:
        server: Server = self._create_server(flavor_id=flavor, networks="none", **kwargs)
        return server

    def boot_refused(self, flavor: str, **kwargs: Any) -> str:
        """The fault of a server that must not come up"""
        server = self.boot(flavor, expected_state="ERROR", **kwargs)
        return str(server["fault"]["message"])

    def confirm(self, server: Server, source: str) -> Server:
        """libvirt's driver compares CONF.host with the instance's host at the source."""
        with self.on(source):
            confirmed: Server = self._confirm_resize(server)
        return confirmed

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
        disks = blockinfo.get_disk_info("lxc", instance, image)
        # The metadata has the time in it.
        with mock.patch("nova.virt.libvirt.driver.time.time", return_value=1800000000.0):
            return str(driver._get_guest_xml(self.context, instance, [], disks, image))

    # What is true

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
        return sorted(each.identifier for each in resources)

    def domain(self, server: Server, host: str = "host1") -> etree._Element:
        """The guest's domain as libvirt has it

        :raises fakelibvirt.libvirtError: where it has none
        """
        connection = self.computes[host].driver._host.get_connection()
        return etree.fromstring(connection.lookupByUUIDString(server["id"]).XMLDesc(0))

    def rendered(self, server: Server, host: str = "host1") -> list[str]:
        """The GPUs whose nodes the domain names, each both as device and as mount."""
        domain = self.domain(server, host)
        chars = domain.xpath("devices/hostdev/source/char/text()")
        mounts = domain.xpath("devices/filesystem/source/@dir")
        nodes = {each for each in chars if re.fullmatch(r"/dev/nvidia\d+", each)}
        bound = {each for each in mounts if re.fullmatch(r"/dev/nvidia\d+", each)}
        self.assertEqual(nodes, bound)
        return sorted(self.nodes[host][node] for node in nodes)

    def allocated(self, server: Server) -> dict[str, int]:
        """How many GPUs Placement counts for the instance, by host"""
        found = {}
        for uuid, allocation in self._get_allocations_by_server_uuid(server["id"]).items():
            if amount := allocation["resources"].get("PGPU"):
                name = self.placement.get(f"/resource_providers/{uuid}").body["name"]
                found[name.partition("_gpu_")[0]] = amount
        return found

    def groups(self, host: str = "host1") -> Mapping[str, str]:
        """The uuids of the host's groups of GPUs, by the product's id"""
        url = f"/resource_providers?in_tree={self.compute_rp_uuids[host]}"
        providers = self.placement.get(url, version="1.14").body["resource_providers"]
        matches = {
            each["uuid"]: re.search("_gpu_...._(....)_lxc$", each["name"]) for each in providers
        }
        return {match[1]: uuid for uuid, match in matches.items() if match}

    def inventory(self, host: str = "host1") -> Mapping[str, int]:
        """Of the host's only group: total, reserved and used"""
        (uuid,) = self.groups(host).values()
        inventory = self._get_provider_inventory(uuid)["PGPU"]
        used = self._get_provider_usages(uuid)["PGPU"]
        return {"total": inventory["total"], "reserved": inventory["reserved"], "used": used}

    def assertInventory(
        self, total: int = 8, reserved: int = 0, used: int = 0, host: str = "host1"
    ) -> None:
        expected = {"total": total, "reserved": reserved, "used": used}
        self.assertEqual(expected, self.inventory(host))


def _migrate_disk_and_power_off(
    self: libvirt_driver.LibvirtDriver, context: Any, instance: Any, *args: Any, **kwargs: Any
) -> str:
    """Without disks to copy: the guest is stopped and stays defined at the source."""
    self.power_off(instance)
    return "[]"


def _address_by_node(host: hosts.Host) -> Mapping[str, str]:
    found = {}
    for folder in (host.roots.proc / "driver/nvidia/gpus").glob("*"):
        minor = re.search(r"Device Minor: \t (\d+)", (folder / "information").read_text())
        assert minor
        found[f"/dev/nvidia{minor[1]}"] = folder.name
    return found
