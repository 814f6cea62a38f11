# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fixtures
from lxml import etree
from nova import objects
from nova.virt.libvirt import config as vconfig

from nova_gpu.core.flavor import request
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.virt.delivery import (
    pci_aliases,
    vgpu_deliveries,
)
from nova_gpu.virt.delivery.vgpu_deliveries import VirtualFunctions
from tests.fixtures import cards, hosts, processors
from tests.fixtures.bases.host import HostTestCase

UUID = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
CARD = "0000:c3:00.0"
FUNCTION = PciAddress.parse("0000:c3:00.1")
PLAIN, TYPED = Slot(FUNCTION, "vf", 0), Slot(FUNCTION, "nvidia-1155", 0)


class VirtualFunctionsTest(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "8086", "56c0", totalvfs=1)
        self.host.add_vf(CARD, str(FUNCTION))
        self.host.set_autoprobe(CARD, enabled=False)
        self.plain, self.typed = self.ways()

    def register(self) -> None:
        """NVIDIA's driver has its functions, and registers them with VFIO."""
        self.host.bind(str(FUNCTION), "nvidia")
        self.host.register_with_vfio(str(FUNCTION))

    def ways(self, *device_spec: str) -> tuple[VirtualFunctions, VirtualFunctions]:
        spec = pci_aliases.DeviceSpec(device_spec)
        own = self.host.roots, spec
        plain = vgpu_deliveries.PlainFunctions(*own, lambda: 10000000)
        return plain, vgpu_deliveries.TypedFunctions(*own, lambda: 10000000)

    def obstacle(self, way: VirtualFunctions) -> str | None:
        return way.obstacle(cards.card(CARD), [FUNCTION])

    def test_who_binds_it_and_what_its_iommu_can_map(self) -> None:
        processors.write_intel_iommu(self.host.roots.sysfs, "dmar0", 0x1C0000C40660462)
        for way, slot, managed in ((self.plain, PLAIN, "yes"), (self.typed, TYPED, "no")):
            guest = vconfig.LibvirtConfigGuest()
            guest.name, guest.virt_type, guest.os_type = "instance-00000001", "kvm", "hvm"
            guest.cpu = vconfig.LibvirtConfigGuestCPU()
            guest.cpu.mode = "host-passthrough"
            way.render(objects.Instance(uuid=UUID), request.of({}), guest, [slot])
            domain = etree.fromstring(guest.to_xml())
            (bits,) = domain.findall("cpu/maxphysaddr")
            self.assertEqual({"mode": "passthrough", "limit": "39"}, dict(bits.attrib))
            (function,) = domain.findall("devices/hostdev")
            self.assertEqual(("pci", managed), (function.get("type"), function.get("managed")))
            expected = {"domain": "0x0000", "bus": "0xc3", "slot": "0x00", "function": "0x1"}
            self.assertEqual(
                expected, dict(*(address.attrib for address in function.iterfind("source/address")))
            )
            self.assertIsNone(function.find("address"), "libvirt finds it a place")

    def test_a_plain_one_that_the_hosts_driver_would_take(self) -> None:
        self.assertIsNone(self.obstacle(self.plain))
        self.host.set_autoprobe(CARD, enabled=True)
        self.assertIn("the host's driver would take", self.obstacle(self.plain) or "")
        self.register()
        self.assertIsNone(self.obstacle(self.typed))

    def test_what_nova_gives_itself(self) -> None:
        self.register()
        for way in self.ways(f'{{"address": "{FUNCTION}"}}'):
            self.assertIn("[pci]device_spec", self.obstacle(way) or "")
        for address, is_given in ((CARD, True), ("0000:01:00.0", False)):
            plain, _ = self.ways(f'{{"address": "{address}"}}')
            self.assertEqual(is_given, "[pci]device_spec" in (self.obstacle(plain) or ""))

    def test_whose_state_is_kept(self) -> None:
        for driver, running, is_kept in (
            ("vfio-pci", True, False),
            ("xe-vfio-pci", True, True),
            (None, True, False),
            (None, False, True),
        ):
            with self.subTest(driver=driver, running=running):
                self.host.bind(str(FUNCTION), driver)
                reason = self.plain.stateless(PLAIN, is_running=running)
                self.assertEqual(is_kept, reason is None, reason)
        # Nova 2024.1 moves none.
        self.host.bind(str(FUNCTION), "xe-vfio-pci")
        self.useFixture(
            fixtures.MonkeyPatch("nova.objects.migrate_data.LibvirtLiveMigrateData.fields", {})
        )
        reason = self.plain.stateless(PLAIN, is_running=True)
        self.assertIn("before 2025.1", reason or "")

    def test_without_an_iommu(self) -> None:
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path, iommu=False)
        self.host.add_gpu(CARD, "8086", "56c0", totalvfs=1)
        self.host.add_vf(CARD, str(FUNCTION))
        self.register()
        for way in self.ways():
            self.assertIn("IOMMU", self.obstacle(way) or "")

    def test_a_libvirt_and_a_driver_that_let_a_guest_have_a_typed_one(self) -> None:
        self.register()
        self.assertIsNone(self.obstacle(self.typed))
        self.host.bind(str(FUNCTION), "nvidia")  # which does not register it with VFIO
        self.assertIn("no vfio-dev in sysfs", self.obstacle(self.typed) or "")
        own = self.host.roots, pci_aliases.DeviceSpec(())
        old = vgpu_deliveries.TypedFunctions(*own, lambda: 9010000)
        silent = vgpu_deliveries.TypedFunctions(*own, lambda: None)
        for way, reason in ((old, "libvirt 9.10.0 starts no"), (silent, "not report its")):
            self.assertIn(reason, self.obstacle(way) or "")
