# SPDX-License-Identifier: Apache-2.0
"""Without a GPU in the host the driver is the stock one."""

from __future__ import annotations

from typing import Any

from nova.compute import provider_tree
from nova.virt.libvirt import driver as libvirt_driver

from tests.fixtures import large_cards, pci
from tests.functional import alone, base, kvm


class StockTest(alone.Alone, base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host(machine="cpu-only")
        self.ours = self.computes["host1"].driver
        self.stock = libvirt_driver.LibvirtDriver(self.ours.virtapi)
        connection = self.ours._host.get_connection()
        self.stock._host.get_connection = lambda: connection
        self.stock._host.get_node_uuid = self.ours._host.get_node_uuid

    def test_provider_tree(self) -> None:
        ours, stock = (self._provider_tree(each) for each in (self.ours, self.stock))
        self.assertEqual(stock, ours)
        self.assertEqual(["host1"], [each["name"] for each in stock])

    def test_resources(self) -> None:
        with self.on("host1"):
            ours, stock = (each.get_available_resource("host1") for each in (self.ours, self.stock))
        for found in (ours, stock):
            # of this machine, now
            del found["memory_mb_used"]
            found["stats"].pop("uptime", None)
        self.assertEqual(stock, ours)

    def test_xml(self) -> None:
        instance = self.instance(self.boot(self.flavor()))
        ours, stock = (self.xml(each, instance) for each in (self.ours, self.stock))
        self.assertEqual(stock, ours)
        self.assertIn(instance.uuid, stock)

    def test_xml_differs_with_a_gpu(self) -> None:
        """Else the test above would show nothing."""
        self.hosts["host1"].add_gpu("0000:04:00.0", "10de", "1091")
        self.period()
        instance = self.instance(self.boot(self.flavor()))
        ours, stock = (self.xml(each, instance) for each in (self.ours, self.stock))
        self.assertNotEqual(stock, ours)

    def _provider_tree(self, driver: libvirt_driver.LibvirtDriver) -> list[dict[str, Any]]:
        tree = provider_tree.ProviderTree()
        root = self.compute_rp_uuids["host1"]
        tree.new_root("host1", root)
        driver.update_provider_tree(tree, "host1")
        return [tree.data(uuid)._asdict() for uuid in tree.get_provider_uuids()]


class LargeCardsTest(alone.Alone, kvm.KVMServersTestBase):
    def test_instances_without_gpus_are_novas_own_beside_each(self) -> None:
        """A10, L4, L40S, A100, H100 NVL, RTX PRO 6000 and MI300X, offered with default options."""
        self.start_host(machine="cpu-only")
        host = self.hosts["host1"]
        for number, (product_id, card) in enumerate(large_cards.CARDS.items(), start=1):
            vendor_id, kind, bars = card
            address = f"0000:{number}1:00.0"
            host.add_gpu(address, vendor_id, product_id, class_code=kind, driver="vfio-pci")
            pci.write_bars(host.path(address), bars)
        self.period()
        found = {each: self.counts(uuid, "PGPU") for each, uuid in self.groups().items()}
        offered = {each: total - reserved for each, (total, reserved, _) in found.items()}
        self.assertEqual(dict.fromkeys(large_cards.CARDS, 1), offered)

        ours = self.computes["host1"].driver
        stock = libvirt_driver.LibvirtDriver(ours.virtapi)
        stock._host = ours._host
        plain, large = self.instance(self.boot(self.flavor())), self.boot(self.gpu_flavor(1))
        self.assertEqual(self.xml(stock, plain), self.xml(ours, plain))
        # Else that would show nothing
        self.assertTrue(
            self.domain(large).xpath("devices/controller[@model='pcie-root']/pcihole64")
        )
