# SPDX-License-Identifier: Apache-2.0
"""What can be done to an instance on its host, beside what the matrix does to it.

doc/source/reference/operations.csv says which other tests there are.
"""

from __future__ import annotations

import contextlib
import io
from unittest import mock

from keystoneauth1 import exceptions as ks_exc
from lxml import etree
from nova.objects import host_mapping
from nova.scheduler.client import report

from nova_gpu.cmd import exporter, this_host
from nova_gpu.virt.inventory import discovery
from tests.functional import base, kvm


class KVMLifecycleTest(kvm.KVMServersTestBase):
    """One host, a neighbour with the first GPU, and an instance with another."""

    HOSTS = ("host1",)
    RESPONSE_VALIDATION = "error"

    def setUp(self) -> None:
        super().setUp()
        self.neighbour = self.boot(self.gpu_flavor(1))
        self.neighbours = self.recorded(self.neighbour)
        self.server = self.boot(self.gpu_flavor(1))
        self.mine = self.recorded(self.server)

    def assertAsBefore(self, used: int = 2) -> None:
        self.assertGPUs(self.server, self.mine)
        self.assertGPUs(self.neighbour, self.neighbours)
        self.period()
        self.assertInventory(used=used)

    def test_what_its_guest_comes_back_from(self) -> None:
        self._reboot_server(self.server, hard=True)
        self._reboot_server(self.server)
        self.assertIn("Instance soft rebooted successfully", self.log())
        self.assertAsBefore()
        self._rebuild_server(self.server, base.IMAGE)
        self.rescue(self.server)
        self.assertEqual(self.mine, self.rendered(self.server))
        self.perform(self.server, "unrescue", "ACTIVE")
        # Stopped, it keeps them, also over a restart of the service.
        self._stop_server(self.server)
        self.restart_host("host1")
        self.period()
        other = self.boot(self.gpu_flavor(2))
        self.assertEqual(set(), {*self.mine} & {*self.recorded(other)})
        self._delete_server(other)
        self._start_server(self.server)
        self.assertAsBefore()

    def test_host_boot(self) -> None:
        """As after a power failure, before Placement is up: until then nothing needs it."""
        self.lose_power()
        down = mock.Mock(side_effect=ks_exc.ConnectFailure("nobody there"))
        verbs = dict.fromkeys(("get", "put", "post", "delete"), down)
        with mock.patch.multiple(report.SchedulerReportClient, **verbs):
            self.restart_host("host1")
            for server in (self.server, self.neighbour):
                self.assertEqual("ACTIVE", self._show_server(server)["status"])
            self.assertEqual(2, sum(domain.isActive() for domain in self._domains("host1")))
        self.assertAsBefore()

    def test_host_deleted_and_started_again(self) -> None:
        for server in (self.server, self.neighbour):
            self._delete_server(server)
        (service,) = self.api.get_services(binary="nova-compute", host="host1")
        self.computes["host1"].stop()
        self.api.api_delete(f"/os-services/{service['id']}")
        providers = self.placement.get("/resource_providers").body["resource_providers"]
        self.assertEqual(
            [], [provider["name"] for provider in providers if "_gpu_" in provider["name"]]
        )
        self.restart_host("host1")
        self.assertInventory(used=0)
        # As with any host that is new: nova-manage cell_v2 discover_hosts
        host_mapping.discover_hosts(self.context)
        self.assertGPUs(self.boot(self.gpu_flavor(1)), self.neighbours)

    def test_made_before_its_flavor_had_gpus(self) -> None:
        """An instance keeps the flavor it was made with."""
        flavor = self.flavor()
        old = self.boot(flavor)
        self.api.post_extra_spec(flavor, {"extra_specs": {"gpus": "= 1"}})
        self._reboot_server(old, hard=True)
        self._stop_server(old)
        self.restart_host("host1")
        self._start_server(old)
        self.assertGPUs(old, [])
        new = self.boot(flavor)
        self.assertGPUs(new, self.recorded(new))
        self.assertAsBefore(used=3)

    def test_removed_and_installed_again(self) -> None:
        """What the page on installation says: with Nova's own driver guests run on."""
        self.leaves = {"bill": "Nova's own driver sends no gpu.release of what it deletes"}
        before = etree.tostring(self.domain(self.server))
        self.flags(compute_driver="libvirt.LibvirtDriver")
        self.restart_host("host1")
        self.one_period()
        self.assertEqual(before, etree.tostring(self.domain(self.server)))
        self._delete_server(self.neighbour)
        # Placement still has its free cards, and GPUFilter sends no instance there.
        self.assertInventory(used=1)
        self.assertIn("No valid host", self.boot_refused(self.gpu_flavor(1)))
        self._reboot_server(self.server, hard=True)
        self.assertNotIn(b"<hostdev", etree.tostring(self.domain(self.server)))
        self.flags(compute_driver="gpu.GPULibvirtDriver")
        self.restart_host("host1")
        self.period()
        self._reboot_server(self.server, hard=True)
        self.assertGPUs(self.server, self.mine)

    def test_class_of_another_release(self) -> None:
        """It stays at Placement after the way back from the release that counts it."""
        name, (group,) = "CUSTOM_GPU_SLICE", self.groups().values()
        self.placement.put(f"/resource_classes/{name}", None, version="1.7")
        url = f"/resource_providers/{group}/inventories"
        inventories = self.placement.get(url).body
        inventories["inventories"][name] = inventories["inventories"]["PGPU"]
        self.placement.put(url, inventories)
        url = f"/allocations/{self.server['id']}"
        consumer = self.placement.get(url, version="1.28").body
        consumer["allocations"][group]["resources"][name] = 1
        self.placement.put(url, consumer, version="1.28")
        self.restart_host("host1")
        self.boot(self.gpu_flavor(1))
        self.assertAsBefore(used=3)

    def metrics(self) -> dict[str, float]:
        sources, output = self.sources(), io.StringIO()
        own = mock.patch.object(this_host, "Reader", return_value=sources.libvirt)
        state = self._state_of("host1")
        with self.on("host1"), state, own, contextlib.redirect_stdout(output):
            self.assertEqual(0, exporter.main(sources.discovery, "", once=True))
        lines = [line for line in output.getvalue().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    def test_what_an_operator_is_paged_for(self) -> None:
        """A host whose GPUs nova-compute does not see, and nothing that a tenant's image does"""
        period, free = "nova_gpu_period_timestamp_seconds", "nova_gpu_free"
        self.period()
        before = self.metrics()
        self.assertEqual(2, before[free])
        with mock.patch.object(discovery.Discovery, "find", side_effect=ZeroDivisionError):
            self.one_period()
        self.assertIn("none free", self.boot_refused(self.gpu_flavor(1)))
        after = self.metrics()
        self.assertEqual((before[period], 1), (after[period], after["nova_gpu_up"]))
        self.period()
        self.assertLess(before[period], self.metrics()[period])

        self.flags(hw_machine_type=[], group="libvirt")
        self.boot(self.gpu_flavor(1), expected_state="ERROR")
        failed = [name for name, value in self.metrics().items() if "failures" in name and value]
        self.assertEqual([True], ['cause="request"' in name for name in failed], failed)
