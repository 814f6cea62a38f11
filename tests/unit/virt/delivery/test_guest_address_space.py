# SPDX-License-Identifier: Apache-2.0
"""What the domain of a guest with large cards says, and who is refused, over a generated host."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import fixtures
from lxml import etree
from nova import exception as nova_exception
from nova import objects
from nova.virt.libvirt import config as vconfig
from oslo_config import fixture as config_fixture
from oslo_utils.fixture import uuidsentinel
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.model import GPU
from nova_gpu.host.pci import discovery, selection
from nova_gpu.virt.delivery import (
    domain_xml,
    guest_address_space,
    pci_aliases,
    pci_passthrough,
    peer_access,
)
from nova_gpu.virt.usage import ledger, records
from tests.fixtures import hosts, large_cards, pci, processors


class AddressSpaceTestCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF))
        self.config.config(group="libvirt", virt_type="kvm", cpu_mode=None)
        self.host = self.make_host(large_cards.H100_NVL, 4)
        self.libvirt = 9003000

    def make_host(
        self, product_id: str, count: int, processor: processors.Processor = processors.SERVER
    ) -> hosts.Host:
        root = self.useFixture(fixtures.TempDir()).path
        self.host = hosts.Host(root, processor=processor)
        vendor_id, class_code, bars = large_cards.CARDS[product_id]
        for number in range(count):
            address = f"0000:{number + 1}1:00.0"
            self.host.add_gpu(address, vendor_id, product_id, class_code=class_code)
            pci.write_bars(self.host.path(address), bars)
        return self.host

    def cards(self) -> tuple[GPU, ...]:
        selected = selection.Selection.parse(["10de", "1002"], [], [])
        return discovery.discover(self.host.roots, selected, {}, dict)

    def instance(
        self, gib: int, extra_specs: dict[str, str] | None = None, **image: Any
    ) -> objects.Instance:
        flavor = objects.Flavor(extra_specs=extra_specs or {}, memory_mb=gib << 10)
        instance = objects.Instance(flavor=flavor, system_metadata={}, uuid=uuidsentinel.instance)
        instance.numa_topology = None
        properties = objects.ImageMetaProps(**{"hw_machine_type": "q35", **image})
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova.objects.Instance.image_meta", objects.ImageMeta(properties=properties)
            )
        )
        return instance

    def set_up(self, guest: Any, instance: objects.Instance) -> None:
        flavor_request, is_uefi = records.request_of(instance), domain_xml.has_uefi(guest)
        setting = guest_address_space.setting(
            instance, flavor_request, self.cards(), self.host.roots, is_uefi=is_uefi
        )
        domain_xml.give_room(guest, setting)
        domain_xml.limit_bits(guest, self.host.roots, self.libvirt)

    def refuse(self, instance: objects.Instance, cards: Sequence[GPU] | None = None) -> None:
        """:raises GuestUnfit: where its guest has no room for the cards"""
        roots = self.host.roots
        way = pci_passthrough.PCIPassthrough(
            *(roots, pci_aliases.DeviceSpec(()), self.host.root / "unbound", ledger.Ledger()),
            peer_access.Peers(roots),
        )
        cards = self.cards() if cards is None else cards
        way.refuse(instance, records.request_of(instance), cards)

    def refused(self, instance: objects.Instance) -> str:
        with self.assertRaises(exception.GuestUnfit) as raised:
            self.refuse(instance)
        aborted = nova_exception.BuildAbortException(instance.uuid, reason=str(raised.exception))
        self.assertLessEqual(len(str(aborted)), 255)  # what Nova keeps of a fault
        return str(raised.exception)


class DomainTest(AddressSpaceTestCase):
    def guest(self, *, uefi: bool, cpu_mode: str = "host-model", ports: int = 0) -> Any:
        guest = vconfig.LibvirtConfigGuest()
        guest.name, guest.virt_type, guest.os_type = "instance-00000001", "kvm", "hvm"
        guest.os_mach_type = "pc-q35-7.2"
        if uefi:
            guest.os_loader_type = "pflash"
        if cpu_mode != "none":
            guest.cpu = vconfig.LibvirtConfigGuestCPU()
            guest.cpu.mode = cpu_mode
        if ports:
            guest.add_device(vconfig.LibvirtConfigGuestPCIeRootController())
            guest.add_device(vconfig.LibvirtConfigGuestPCIeRootPortController())
        guest.add_device(vconfig.LibvirtConfigGuestVideo())
        return guest

    def domain(self, gib: int, *, uefi: bool = False, ports: int = 0, **specs: str) -> Any:
        cpu_mode = CONF.libvirt.cpu_mode or "host-model"
        guest = self.guest(uefi=uefi, cpu_mode=cpu_mode, ports=ports)
        extra_specs = {f"hw:{name}": value for name, value in specs.items()}
        domain_xml.add_cards(guest, self.cards(), option_rom=True)
        self.set_up(guest, self.instance(gib, extra_specs))
        return etree.fromstring(guest.to_xml())

    def said(self, domain: Any) -> tuple[dict[str, str], str | None]:
        bits = domain.find("cpu/maxphysaddr")
        hole = domain.findtext("devices/controller[@model='pcie-root']/pcihole64")
        return ({} if bits is None else dict(bits.attrib)), hole

    def test_four_large_cards(self) -> None:
        """The bits are worked out in tests/unit/core/guest/test_address_space.py."""
        hole = str(1023 << 20)
        for gib, is_uefi, bits in ((256, False, 41), (256, True, 43), (768, True, 43)):
            emulated = {"mode": "emulate", "bits": str(bits)}
            self.assertEqual((emulated, hole), self.said(self.domain(gib, uefi=is_uefi)))
        self.config.config(group="libvirt", cpu_mode="host-passthrough")
        for ports in (0, 1):
            passed = self.domain(256, uefi=True, ports=ports)
            self.assertEqual(({"mode": "passthrough"}, hole), self.said(passed))
            (root,) = passed.xpath("devices/controller[@model='pcie-root']")
            self.assertEqual("KiB", root.find("pcihole64").get("unit"))
            self.assertIs(root, passed.find("devices")[0])

    def test_an_iommu_that_is_narrower_than_the_processor(self) -> None:
        """Firmware puts also small BARs at the end of what the processor has."""
        self.make_host("27b8", 1)
        pci.write_bars(self.host.path("0000:11:00.0"), [(16, False), (256, True), (32, True)])
        processors.write_intel_iommu(self.host.roots.sysfs, "dmar0", 0x1C0000C40660462)
        log = self.useFixture(fixtures.FakeLogger())
        limited = {"mode": "passthrough", "limit": "39"}
        self.config.config(group="libvirt", cpu_mode="host-passthrough")
        self.assertEqual((limited, None), self.said(self.domain(16)))
        self.config.config(group="libvirt", cpu_mode="host-model")
        self.assertEqual(({}, None), self.said(self.domain(16)))
        self.assertEqual("", log.output)
        self.config.config(group="libvirt", cpu_mode="host-passthrough")
        self.libvirt = 9002000
        self.assertEqual(({}, None), self.said(self.domain(16)))
        self.assertIn("with the 46 address bits of the host's processor", log.output)
        self.assertIn("cannot map it (39 bits); install libvirt 9.3 or newer", log.output)

    def test_what_the_flavor_says_stays(self) -> None:
        """Within what the IOMMU can map"""
        self.assertSays({"mode": "emulate", "bits": "44"}, 256, mode="emulate", bits=44)
        self.make_host("27b8", 1)
        processors.write_intel_iommu(self.host.roots.sysfs, "dmar0", 0x1C0000C40660462)
        self.assertSays({"mode": "passthrough", "limit": "39"}, 16, mode="passthrough")

    def assertSays(self, expected: dict[str, str], gib: int, **flavor: Any) -> None:
        guest = self.guest(uefi=True)
        guest.cpu.maxphysaddr = vconfig.LibvirtConfigGuestCPUMaxPhysAddr()
        for name, value in flavor.items():
            setattr(guest.cpu.maxphysaddr, name, value)
        specs = {f"hw:maxphysaddr_{name}": str(value) for name, value in flavor.items()}
        self.set_up(guest, self.instance(gib, specs))
        self.assertEqual(expected, self.said(etree.fromstring(guest.to_xml()))[0])

    def test_pages_of_a_gib(self) -> None:
        """UEFI needs them for more than 40 bits; QEMU's Haswell is one of the models without."""
        named = "cpu/feature[@policy='require'][@name='pdpe1gb']"
        for mode, count in (("custom", 1), ("host-model", 1), ("host-passthrough", 0)):
            self.config.config(group="libvirt", cpu_mode=mode)
            self.assertEqual(count, len(self.domain(256, uefi=True).findall(named)))
            self.assertEqual([], self.domain(256).findall(named))

        # One that Nova names is not named twice.
        guest = self.guest(uefi=True, cpu_mode="custom")
        guest.cpu.add_feature(vconfig.LibvirtConfigGuestCPUFeature("pdpe1gb"))
        self.set_up(guest, self.instance(256))
        self.assertEqual(1, len(etree.fromstring(guest.to_xml()).findall("cpu/feature")))

    def test_what_leaves_it_as_it_is(self) -> None:
        """ARM, the operator's figure, and small cards"""
        arm = self.guest(uefi=True)
        arm.os_mach_type = "virt-7.2"
        self.assertUnchanged(arm, 16)
        self.config.config(group="gpu", guest_mmio_gib=1024)
        self.assertEqual(({}, None), self.said(self.domain(256, uefi=True)))
        CONF.clear_override("guest_mmio_gib", "gpu")
        for address in (f"0000:{number}1:00.0" for number in range(1, 5)):
            pci.write_bars(self.host.path(address), [(16, False), (256, True), (32, True)])
        for uefi in (False, True):
            self.assertUnchanged(self.guest(uefi=uefi), 256)

    def assertUnchanged(self, guest: Any, gib: int) -> None:
        before = guest.to_xml()
        self.set_up(guest, self.instance(gib))
        self.assertEqual(before, guest.to_xml())


class RefuseTest(AddressSpaceTestCase):
    def assertSaid(self, gib: int, *words: str, specs: Any = None, **image: Any) -> None:
        message = self.refused(self.instance(gib, specs, **image))
        for word in words:
            self.assertIn(word, message)

    def test_bits(self) -> None:
        """Of flavor and image, and where the host gives a guest no model"""
        emulated = {"hw:maxphysaddr_mode": "emulate", "hw:maxphysaddr_bits": "42"}
        uefi = {"hw_firmware_type": "uefi"}
        few = "UEFI has no room in 42 address bits in addition to 256 GiB"
        self.assertSaid(256, few, "leave hw:maxphysaddr_mode out of flavor", specs=emulated, **uefi)
        self.refuse(self.instance(256, emulated | {"hw:maxphysaddr_bits": "43"}, **uefi))
        image = {"hw_maxphysaddr_mode": "emulate", "hw_maxphysaddr_bits": 40}
        self.assertSaid(256, "40 address bits", **image)
        self.config.config(group="libvirt", cpu_mode="none")
        few = "BIOS has no room in 40 address bits in addition to 256 GiB of memory"
        more = "set [libvirt]cpu_mode = host-model", "have 46 bits"
        self.assertSaid(256, "together they map 1024 GiB", few, *more)
        # A flavor may have the processor's own bits where the hosts' guests have 40.
        self.assertEqual(4, guest_address_space.most(self.cards(), self.host.roots))

    def test_a_narrow_iommu(self) -> None:
        processors.write_intel_iommu(self.host.roots.sysfs, "dmar0", 0x1C0000C40660462)
        self.assertSaid(256, "39 address bits", "ask for fewer, or for less memory")
        self.config.config(group="libvirt", cpu_mode="host-passthrough")
        self.assertSaid(256, "39 address bits")

    def test_a_tree_takes_more(self) -> None:
        """A guest with several cells has it where there is room, and starts without elsewhere."""
        self.config.config(group="libvirt", cpu_mode="none")
        self.make_host("26b9", 1, processors.EPYC)
        held = [dataclasses.replace(card, numa_node=0) for card in self.cards()]
        cells = [objects.InstanceNUMACell(id=node) for node in (0, 1)]
        for word in ("flat", "auto", "required"):
            specs = {"gpu:guest_topology": word}
            instance = self.instance(16, specs, hw_firmware_type="uefi")
            instance.numa_topology = objects.InstanceNUMATopology(cells=cells)
            if word != "required":
                self.refuse(instance, held)
        with self.assertRaisesRegex(exception.GuestUnfit, "together they map 128 GiB"):
            self.refuse(instance, held)

    def test_what_its_domain_cannot_have(self) -> None:
        """Some of it is known before its cards are."""
        cards, q35 = self.cards(), self.instance(16)
        (self.host.path(str(cards[0].address)) / "resource").unlink()
        with self.assertRaisesRegex(exception.DeviceUnavailable, str(cards[0].address)):
            self.refuse(q35, cards)
        with self.assertRaisesRegex(exception.GuestUnfit, "pc-i440fx-7.2"):
            self.refuse(self.instance(16, hw_machine_type="pc-i440fx-7.2"), ())
        with self.assertRaisesRegex(exception.InvalidExtraSpec, "perhaps"):
            self.refuse(self.instance(16, {"gpu:option_rom": "perhaps"}), ())

    def test_the_operators_figure(self) -> None:
        cards = self.cards()
        self.assertEqual(4, guest_address_space.most(cards, self.host.roots))
        self.config.config(group="gpu", guest_mmio_gib=512)
        self.assertSaid(16, "together they map 1024 GiB", "unset [gpu]guest_mmio_gib")
        for gone, most in ((0, 2), (1, 2), (4, 4)):
            for card in cards[:gone]:
                if self.host.has(str(card.address)):
                    self.host.remove(str(card.address))
            self.assertEqual(most, guest_address_space.most(cards, self.host.roots))
