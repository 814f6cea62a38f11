# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import unittest
from typing import Any
from unittest import mock

import fixtures
from lxml import etree
from nova.virt.libvirt import blockinfo
from nova.virt.libvirt import config as vconfig
from oslotest import base

from nova_gpu.core.container import GuestContents, Mount
from nova_gpu.core.model import GPU
from nova_gpu.virt.delivery import domain_xml
from nova_gpu.virt.usage import domains
from tests.fixtures import cards

ADDRESSES = cards.addresses("0000:04:00.0", "0000:05:00.0")
CONTENTS = GuestContents(
    nodes=("/dev/nvidia0", "/dev/nvidiactl"),
    mounts=(Mount("/var/lib/nova/gpu-libraries/570", "/usr/lib/nova-gpu"),),
    env=(("LD_LIBRARY_PATH", "/usr/lib/nova-gpu"),),
)


def container() -> vconfig.LibvirtConfigGuest:
    config = vconfig.LibvirtConfigGuest()
    config.name, config.virt_type = "instance-00000001", "lxc"
    config.os_type, config.os_init_path = "exe", "/sbin/init"
    root = vconfig.LibvirtConfigGuestFilesys()
    root.source_dir, root.target_dir = "/var/lib/nova/instances/one/rootfs", "/"
    config.add_device(root)
    return config


class AddNodesTest(unittest.TestCase):
    def test_what_a_container_sees(self) -> None:
        config = container()
        domain_xml.add_nodes(config, ADDRESSES, CONTENTS)
        xml = config.to_xml()
        domain: Any = etree.fromstring(xml)
        for node in CONTENTS.nodes:
            (device,) = domain.xpath(f"devices/hostdev[source/char='{node}']")
            self.assertEqual({"mode": "capabilities", "type": "misc"}, dict(device.attrib))
            (mount,) = domain.xpath(f"devices/filesystem[source/@dir='{node}']")
            self.assertEqual(node, mount.find("target").get("dir"))
            self.assertIsNone(mount.find("readonly"))
        (mount,) = domain.xpath("devices/filesystem[target/@dir='/usr/lib/nova-gpu']")
        self.assertEqual("/var/lib/nova/gpu-libraries/570", mount.find("source").get("dir"))
        self.assertIsNotNone(mount.find("readonly"))
        # The root stays the first.
        self.assertEqual("/", domain.find("devices/filesystem/target").get("dir"))
        (env,) = domain.findall("os/initenv")
        self.assertEqual(("LD_LIBRARY_PATH", "/usr/lib/nova-gpu"), (env.get("name"), env.text))
        self.assertEqual(set(ADDRESSES), domains.gpus_in(xml, domains.Parts({}, {})))
        vconfig.LibvirtConfigGuest().parse_str(xml)


def whole(address: str, *companions: str) -> GPU:
    return dataclasses.replace(cards.card(address), companions=cards.addresses(*companions))


PAIR = whole("0000:3b:00.0", "0000:3b:00.1")
ALONE = whole("10000:af:1f.0")
ALONE_AT = ("0x10000", "0xaf", "0x1f", "0x0")


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


class AddCardsTest(unittest.TestCase):
    def domain(self, *gpus: GPU, ports: int = 1) -> Any:
        config = guest(ports=ports)
        domain_xml.add_cards(config, gpus, option_rom=True)
        return etree.fromstring(config.to_xml())

    def test_each_card_behind_a_port_of_its_own(self) -> None:
        domain = self.domain(PAIR, ALONE)
        ports = domain.xpath("devices/controller[@model='pcie-root-port']/@index")
        self.assertEqual(["1", "2"], ports)
        kind = {"mode": "subsystem", "type": "pci", "managed": "yes"}
        for hostdev, source, place in zip(
            domain.findall("devices/hostdev"),
            (("0x0000", "0x3b", "0x00", "0x0"), ("0x0000", "0x3b", "0x00", "0x1"), ALONE_AT),
            (("0x01", "0x0", "on"), ("0x01", "0x1", None), ("0x02", "0x0", None)),
            strict=True,
        ):
            self.assertEqual(kind, dict(hostdev.attrib))
            attribute = hostdev.find("source/address").get
            self.assertEqual(source, tuple(map(attribute, ("domain", "bus", "slot", "function"))))
            attribute = hostdev.find("address").get
            self.assertEqual(place, tuple(map(attribute, ("bus", "function", "multifunction"))))
            self.assertEqual("0x00", attribute("slot"))

    def test_cliques(self) -> None:
        """Of the card's first function, which is the one that the driver looks at"""
        config = guest()
        cliques = {PAIR.address: 1, ALONE.address: 2}
        domain_xml.add_cards(config, [ALONE, PAIR], option_rom=True, cliques=cliques)
        domain = etree.fromstring(domain_xml.with_cliques(config).to_xml())
        names = {"qemu": "http://libvirt.org/schemas/domain/qemu/1.0"}
        self.assertEqual(2, len(domain.xpath("qemu:override/qemu:device", namespaces=names)))
        for card, number in ((PAIR, "1"), (ALONE, "2")):
            (alias,) = domain.xpath(
                f"devices/hostdev[source/address/@bus='0x{card.address.bus:02x}'][alias]/alias/@name"
            )
            (element,) = domain.xpath(
                f"qemu:override/qemu:device[@alias='{alias}']/qemu:frontend/qemu:property",
                namespaces=names,
            )
            self.assertEqual(
                {"name": "x-nv-gpudirect-clique", "type": "unsigned", "value": number},
                dict(element.attrib),
            )
            self.assertTrue(alias.startswith("ua-"))
        self.assertEqual(["0x0", "0x0"], domain.xpath("devices/hostdev[alias]/address/@function"))

    def test_without_cliques_nothing_of_qemus(self) -> None:
        config = guest()
        domain_xml.add_cards(config, [PAIR, ALONE], option_rom=True)
        self.assertIs(config, domain_xml.with_cliques(config))
        xml = config.to_xml()
        domain = etree.fromstring(xml)
        self.assertEqual([], domain.xpath("devices/hostdev/alias"))
        self.assertEqual("devices", domain[-1].tag)
        addresses = domains.gpus_in(xml, domains.Parts({}, {}))
        self.assertEqual({PAIR.address, ALONE.address}, addresses)

    def test_ports(self) -> None:
        """Ours are in front of Nova's devices: else libvirt would give their numbers to those. Of a
        guest without any libvirt makes all: one that is defined would leave none free."""
        kinds = [
            element.get("model") or element.tag for element in self.domain(PAIR).find("devices")
        ]
        expected = ["pcie-root-port", "hostdev", "hostdev", "video", "pcie-root", "pcie-root-port"]
        self.assertEqual(expected, kinds)
        domain = self.domain(PAIR, ALONE, ports=0)
        self.assertEqual([], domain.xpath("devices/controller"))
        buses = domain.xpath("devices/hostdev/address[@type='pci']/@bus")
        self.assertEqual(["0x01", "0x01", "0x02"], buses)


class DefineAgainTest(base.BaseTestCase):
    def test_the_firmware_that_libvirt_chose_stays(self) -> None:
        """Where Nova has a way to tell: from 34 on"""
        self.useFixture(fixtures.MockPatchObject(blockinfo, "get_disk_info"))
        for known in ({}, {"_get_existing_guest_config": lambda _: "the domain's"}):
            nova = mock.Mock(spec=["rescue", "_get_guest_xml", "_host", *known])
            nova.configure_mock(**known)
            nova.rescue = lambda context, instance, network_info, block_device_info: None
            instance = mock.Mock(spec=["image_meta"])
            domain_xml.define_again(nova, "context", instance, [], {})
            arguments = nova._get_guest_xml.call_args.kwargs
            self.assertEqual("the domain's" if known else None, arguments.get("old_guest"))
            nova._host.write_instance_config.assert_called_once_with(nova._get_guest_xml())
