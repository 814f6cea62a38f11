# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import unittest
from typing import Any

from lxml import etree
from nova.virt.libvirt import config as vconfig

from nova_gpu.core import exception
from nova_gpu.core.model import GPU
from nova_gpu.virt.delivery import guest_pci
from nova_gpu.virt.usage import domains
from tests.fixtures import cards


def whole(address: str, *companions: str) -> GPU:
    return dataclasses.replace(cards.card(address), companions=cards.addresses(*companions))


PAIR = whole("0000:3b:00.0", "0000:3b:00.1")
ALONE = whole("10000:af:1f.0")


def guest(machine_type: str = "pc-q35-7.2", ports: int = 1) -> vconfig.LibvirtConfigGuest:
    config = vconfig.LibvirtConfigGuest()
    config.name, config.virt_type, config.os_type = "instance-00000001", "kvm", "hvm"
    config.os_mach_type = machine_type
    config.add_device(vconfig.LibvirtConfigGuestVideo())
    if ports:
        config.add_device(vconfig.LibvirtConfigGuestPCIeRootController())
    for _ in range(ports):
        config.add_device(vconfig.LibvirtConfigGuestPCIeRootPortController())
    return config


class AddGPUsTest(unittest.TestCase):
    def domain(self, *gpus: GPU, option_rom: bool = True) -> Any:
        config = guest()
        guest_pci.add_cards(config, gpus, option_rom=option_rom)
        return etree.fromstring(config.to_xml())

    def test_each_card_behind_a_port_of_its_own(self) -> None:
        domain = self.domain(PAIR, ALONE)
        ports = domain.xpath("devices/controller[@model='pcie-root-port']/@index")
        self.assertEqual(["1", "2"], ports)
        self.assertEqual(
            [
                ("3b", "00", "0", "0x01", "0x0", "on"),
                ("3b", "00", "1", "0x01", "0x1", None),
                ("af", "1f", "0", "0x02", "0x0", None),
            ],
            [
                (
                    *(each.find("source/address").get(key)[2:] for key in ("bus", "slot")),
                    each.find("source/address").get("function")[2:],
                    each.find("address").get("bus"),
                    each.find("address").get("function"),
                    each.find("address").get("multifunction"),
                )
                for each in domain.findall("devices/hostdev")
            ],
        )
        for each in domain.findall("devices/hostdev"):
            self.assertEqual(
                {"mode": "subsystem", "type": "pci", "managed": "yes"}, dict(each.attrib)
            )
            self.assertEqual("0x00", each.find("address").get("slot"))
        self.assertEqual(
            ["0x0000", "0x0000", "0x10000"],
            domain.xpath("devices/hostdev/source/address/@domain"),
        )

    def test_cliques(self) -> None:
        """Of the card's first function, which is the one that the driver looks at"""
        config = guest()
        cliques = {PAIR.address: 1, ALONE.address: 2}
        guest_pci.add_cards(config, [ALONE, PAIR], option_rom=True, cliques=cliques)
        domain = etree.fromstring(config.to_xml())
        names = {"qemu": "http://libvirt.org/schemas/domain/qemu/1.0"}
        self.assertEqual(2, len(domain.xpath("qemu:override/qemu:device", namespaces=names)))
        for card, number in ((PAIR, "1"), (ALONE, "2")):
            (alias,) = domain.xpath(
                f"devices/hostdev[source/address/@bus='0x{card.address.bus:02x}'][alias]/alias/@name"
            )
            (told,) = domain.xpath(
                f"qemu:override/qemu:device[@alias='{alias}']/qemu:frontend/qemu:property",
                namespaces=names,
            )
            self.assertEqual(
                {"name": "x-nv-gpudirect-clique", "type": "unsigned", "value": number},
                dict(told.attrib),
            )
            self.assertTrue(alias.startswith("ua-"))
        self.assertEqual(["0x0", "0x0"], domain.xpath("devices/hostdev[alias]/address/@function"))

    def test_without_cliques_nothing_of_qemus(self) -> None:
        domain = self.domain(PAIR, ALONE)
        self.assertEqual([], domain.xpath("devices/hostdev/alias"))
        self.assertEqual("devices", domain[-1].tag)

    def test_in_front_of_novas_devices(self) -> None:
        """Else libvirt would give the numbers of our ports to those of Nova."""
        devices = self.domain(PAIR).find("devices")
        kinds = [each.get("model") or each.tag for each in devices]
        self.assertEqual(
            ["pcie-root-port", "hostdev", "hostdev", "video", "pcie-root", "pcie-root-port"], kinds
        )

    def test_without_ports_of_novas_libvirt_makes_all(self) -> None:
        """If one was defined it would leave none free to attach a device to."""
        config = guest(ports=0)
        guest_pci.add_cards(config, [PAIR, ALONE], option_rom=True)
        domain = etree.fromstring(config.to_xml())
        self.assertEqual([], domain.xpath("devices/controller"))
        self.assertEqual(
            ["0x01", "0x01", "0x02"], domain.xpath("devices/hostdev/address[@type='pci']/@bus")
        )

    def test_option_rom(self) -> None:
        self.assertEqual([], self.domain(PAIR).xpath("devices/hostdev/rom"))
        roms = self.domain(PAIR, option_rom=False).xpath("devices/hostdev/rom")
        self.assertEqual([{"bar": "off"}, {"bar": "off"}], [dict(each.attrib) for each in roms])

    def test_read_back(self) -> None:
        config = guest()
        guest_pci.add_cards(config, [PAIR, ALONE], option_rom=True)
        nothing = domains.Parts({}, {})
        self.assertEqual({PAIR.address, ALONE.address}, domains.gpus_in(config.to_xml(), nothing))
        again = vconfig.LibvirtConfigGuest()
        again.parse_str(config.to_xml())
        found = [
            each for each in again.devices if isinstance(each, vconfig.LibvirtConfigGuestHostdevPCI)
        ]
        self.assertEqual(3, len(found))


class MachineTypeTest(unittest.TestCase):
    def test_with_pci_express(self) -> None:
        for machine_type in ("q35", "pc-q35-7.2", "pc-q35-rhel9.4.0", "virt", "virt-8.0"):
            with self.subTest(machine_type=machine_type):
                guest_pci.refuse_machine_type(machine_type)

    def test_without(self) -> None:
        for machine_type in (None, "pc", "pc-i440fx-7.2", "s390-ccw-virtio", "pseries"):
            with (
                self.subTest(machine_type=machine_type),
                self.assertRaises(exception.GuestUnfit) as caught,
            ):
                guest_pci.refuse_machine_type(machine_type)
            self.assertIn(machine_type or "not set", str(caught.exception))
            self.assertIn("hw_machine_type=q35", str(caught.exception))

    def test_of_the_guest_that_is_rendered(self) -> None:
        """The image of a rescue may say another than the instance's own."""
        config = guest("pc")
        self.assertRaises(exception.GuestUnfit, guest_pci.add_cards, config, [PAIR], option_rom=True)
        self.assertEqual(3, len(config.devices))
