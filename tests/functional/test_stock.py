# SPDX-License-Identifier: Apache-2.0
"""Without a GPU in the host the driver is the stock one."""

from __future__ import annotations

from typing import Any

from nova.compute import provider_tree
from nova.virt.libvirt import driver as libvirt_driver

from tests.functional import base


class StockTest(base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host(machine="cpu-only")
        self.ours = self.computes["host1"].driver
        self.stock = libvirt_driver.LibvirtDriver(self.ours.virtapi)
        connection = self.ours._host.get_connection()
        self.stock._host.get_connection = lambda: connection
        self.stock._host.get_node_uuid = self.ours._host.get_node_uuid

    def test_all_that_nova_reads(self) -> None:
        ours, stock = (self._provider_tree(driver) for driver in (self.ours, self.stock))
        self.assertEqual(stock, ours)
        self.assertEqual(["host1"], [provider["name"] for provider in stock])
        with self.on("host1"):
            ours, stock = (
                driver.get_available_resource("host1") for driver in (self.ours, self.stock)
            )
        for resources in (ours, stock):
            # of this machine, now
            del resources["memory_mb_used"]
            resources["stats"].pop("uptime", None)
        self.assertEqual(stock, ours)
        self.assertEqual(*self._xmls())
        # Else that would show nothing
        self.hosts["host1"].add_gpu("0000:04:00.0", "10de", "1091")
        self.period()
        self.assertNotEqual(*self._xmls())

    def _xmls(self) -> tuple[str, str]:
        instance = self.instance(self.boot(self.flavor()))
        return self.xml(self.ours, instance), self.xml(self.stock, instance)

    def _provider_tree(self, driver: libvirt_driver.LibvirtDriver) -> list[dict[str, Any]]:
        tree = provider_tree.ProviderTree()
        root = self.compute_rp_uuids["host1"]
        tree.new_root("host1", root)
        driver.update_provider_tree(tree, "host1")
        return [tree.data(uuid)._asdict() for uuid in tree.get_provider_uuids()]
