# SPDX-License-Identifier: Apache-2.0
"""Room in KVM guests for cards that map all of their memory."""

from __future__ import annotations

from typing import Any

from lxml import etree
from nova.virt.libvirt import driver as libvirt_driver

from tests.fixtures import large_cards, pci
from tests.functional import alone, kvm
from tests.functional.base import Server


class _LargeBARs(kvm.KVMServersTestBase):
    def start(self) -> None:
        self.start_host()
        self.become_large()
        self.period()

    def become_large(self) -> None:
        """The host's four cards get the BARs of H100 NVL."""
        host = self.hosts["host1"]
        for address in kvm.ALL:
            pci.write_bars(host.path(address), large_cards.CARDS[large_cards.H100_NVL][2])

    def said(self, server: Server) -> tuple[list[str], list[str]]:
        """The address bits and the KiB of the 64-bit PCI hole in the instance's domain"""
        domain: Any = self.domain(server)
        bits = domain.xpath("cpu/maxphysaddr/@bits")
        hole = domain.xpath("devices/controller[@model='pcie-root']/pcihole64/text()")
        return bits, hole


class LargeBARsTest(alone.Alone, _LargeBARs):
    def test_with_default_options(self) -> None:
        """Behind 4 GiB the first BAR is at 128, and the last window ends four of 256 later, as each
        root has its own: at 1152, that is 1148 GiB."""
        self.start()
        self.assertInventory(total=4)
        server = self.boot(self.gpu_flavor(4))
        self.assertGPUs(server, kvm.ALL)
        self.assertEqual((["41"], [str(1148 << 20)]), self.said(server))

    def test_after_a_reboot(self) -> None:
        self.start()
        server = self.boot(self.gpu_flavor(2))
        before = self.said(server)
        self._reboot_server(server, hard=True)
        self.assertEqual(before, self.said(server))
        self.assertTrue(before[1])

    def test_other_instances_are_left_as_they_are(self) -> None:
        self.start_host()
        plain, small = self.boot(self.flavor()), self.boot(self.gpu_flavor(1))
        for server in (plain, small):
            self.assertEqual(([], []), self.said(server))
        self._delete_server(small)
        self._reboot_server(plain, hard=True)  # by which Nova writes the domain anew, as below
        before = self.domain_text(plain)
        self.become_large()
        self.period()
        self._reboot_server(plain, hard=True)
        self.assertEqual(before, self.domain_text(plain))

    def domain_text(self, server: Server) -> bytes:
        """Without the time and the number that are another one each time"""
        domain: Any = self.domain(server)
        del domain.attrib["id"]
        domain.remove(domain.find("metadata"))
        return bytes(etree.tostring(domain))


class PlainInstancesTest(alone.Alone, _LargeBARs):
    def test_are_novas_own_beside_each_large_card(self) -> None:
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
        self.assertTrue(self.said(large)[1])  # else that would show nothing


class RefusedTest(_LargeBARs):
    def test_refused_before_a_card_is_touched(self) -> None:
        self.flags(cpu_mode="none", group="libvirt")
        self.start()
        self.assertInventory(total=4)
        before = {each: self.drivers(each) for each in kvm.ALL}
        fault = self.boot_refused(self.gpu_flavor(4))
        for part in ("together they map 1024 GiB", "40 address bits", "[libvirt]cpu_mode"):
            self.assertIn(part, fault)
        self.assertEqual(before, {each: self.drivers(each) for each in kvm.ALL})
        self.assertEqual([], self.former())
        self.assertInventory(total=4)

    def test_of_uefi_with_forty_bits(self) -> None:
        """It uses the last eighth, 128 GiB, and each of these cards' windows has 256."""
        self.flags(cpu_mode="none", group="libvirt")
        self.start()
        uefi = self.image(hw_machine_type="q35", hw_firmware_type="uefi")
        fault = self.boot_refused(self.gpu_flavor(1), image_uuid=uefi)
        for part in ("UEFI has no room in 40 address bits", "[libvirt]cpu_mode = host-model"):
            self.assertIn(part, fault)
