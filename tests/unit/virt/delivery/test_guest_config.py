# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest
from typing import Any

from lxml import etree
from nova.virt.libvirt import config as vconfig
from oslotest import base

from nova_gpu.core import device
from nova_gpu.core.contents import GuestContents, Mount
from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.virt.delivery import guest_config
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


class AddGPUsTest(unittest.TestCase):
    def setUp(self) -> None:
        config = container()
        guest_config.add_nodes(config, ADDRESSES, CONTENTS)
        self.xml = config.to_xml()
        self.domain: Any = etree.fromstring(self.xml)

    def test_each_node_is_device_and_mount(self) -> None:
        for node in CONTENTS.nodes:
            with self.subTest(node=node):
                (device,) = self.domain.xpath(f"devices/hostdev[source/char='{node}']")
                self.assertEqual({"mode": "capabilities", "type": "misc"}, dict(device.attrib))
                (mount,) = self.domain.xpath(f"devices/filesystem[source/@dir='{node}']")
                self.assertEqual(node, mount.find("target").get("dir"))
                self.assertIsNone(mount.find("readonly"))

    def test_mounts_are_read_only(self) -> None:
        (mount,) = self.domain.xpath("devices/filesystem[target/@dir='/usr/lib/nova-gpu']")
        self.assertEqual("/var/lib/nova/gpu-libraries/570", mount.find("source").get("dir"))
        self.assertIsNotNone(mount.find("readonly"))

    def test_root_stays_the_first_filesystem(self) -> None:
        self.assertEqual("/", self.domain.find("devices/filesystem/target").get("dir"))

    def test_environment(self) -> None:
        (env,) = self.domain.findall("os/initenv")
        self.assertEqual(("LD_LIBRARY_PATH", "/usr/lib/nova-gpu"), (env.get("name"), env.text))

    def test_metadata_says_which(self) -> None:
        self.assertEqual(set(ADDRESSES), domains.gpus_in(self.xml, domains.Parts({}, {})))

    def test_nova_reads_its_own_back(self) -> None:
        config = vconfig.LibvirtConfigGuest()
        config.parse_str(self.xml)
        self.assertEqual("lxc", config.virt_type)


class IsolateTest(unittest.TestCase):
    def test_network_namespace(self) -> None:
        config = container()
        guest_config.isolate(config)
        self.assertIsNotNone(etree.fromstring(config.to_xml()).find("features/privnet"))


class IDMapTest(unittest.TestCase):
    def test_sent_as_plain_numbers_and_rendered_as_before(self) -> None:
        for kind in (vconfig.LibvirtConfigGuestUIDMap, vconfig.LibvirtConfigGuestGIDMap):
            with self.subTest(kind=kind.__name__):
                plain = kind()
                plain.start, plain.target, plain.count = 0, 1000000, 65536
                found = guest_config.id_map(plain)
                self.assertIsInstance(found, tuple)
                self.assertEqual((0, 1000000, 65536), tuple(found))
                # nova tells uid maps from gid maps by their class
                self.assertIsInstance(found, kind)
                self.assertEqual(plain.to_xml(), found.to_xml())


DEVICES = tuple(map(device.parse, ("0000:3b:00.0", "0000:5e:00.0/nvidia-63/1")))


class GuestMetadataTest(base.BaseTestCase):
    def xml(self, *devices: device.Device) -> str:
        guest = vconfig.LibvirtConfigGuest()
        guest.name, guest.virt_type, guest.os_type = "one", "kvm", "hvm"
        guest.metadata.append(guest_config.GuestMetaGPUs(devices))
        return str(guest.to_xml())

    def test_is_read_back(self) -> None:
        """Of a host that has none of them any more"""
        parts = domains.Parts({}, {}, {}, lambda _: None)
        self.assertEqual(frozenset(DEVICES), domains.gpus_in(self.xml(*DEVICES), parts))
        self.assertEqual(frozenset(), domains.gpus_in(self.xml(), parts))

    def test_format(self) -> None:
        """Domains of an earlier release are read, and those of this one by it."""
        xml = self.xml(*DEVICES)
        self.assertIn('xmlns:gpu="urn:nova-gpu:domain:1"', xml)
        for each in DEVICES:
            self.assertIn(f'<gpu:gpu address="{each}"/>', xml)


INSTANCE = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
MEDIATED = Slot.parse("0000:3b:00.0/nvidia-63/2")
FUNCTION = Slot.parse("0000:af:02.5/nvidia-1155/0")


class AddVGPUsTest(unittest.TestCase):
    def test_each_in_its_own_way(self) -> None:
        guest = vconfig.LibvirtConfigGuest()
        guest.name, guest.virt_type, guest.os_type = "instance-00000001", "kvm", "hvm"
        guest_config.add_vgpus(
            guest,
            {
                MEDIATED: guest_config.GuestMediatedDevice(INSTANCE, MEDIATED),
                FUNCTION: guest_config.GuestVirtualFunction(FUNCTION.parent, managed=False),
            },
        )
        xml = guest.to_xml()
        mediated, function = etree.fromstring(xml).findall("devices/hostdev")
        self.assertEqual(
            {"mode": "subsystem", "type": "mdev", "model": "vfio-pci", "managed": "no"},
            dict(mediated.attrib),
        )
        (address,) = mediated.findall("source/address")
        self.assertEqual(device_uuid(INSTANCE, MEDIATED), address.get("uuid"))
        # Its driver is to stay, and libvirt is to find it a place.
        self.assertEqual(
            {"mode": "subsystem", "type": "pci", "managed": "no"}, dict(function.attrib)
        )
        (address,) = function
        (address,) = address
        self.assertEqual(
            {"domain": "0x0000", "bus": "0xaf", "slot": "0x02", "function": "0x5"},
            dict(address.attrib),
        )
        parts = domains.Parts({}, {FUNCTION.parent: FUNCTION.parent})
        self.assertEqual({MEDIATED, FUNCTION}, domains.gpus_in(xml, parts))

    def test_plain_function_is_libvirts_to_bind(self) -> None:
        guest = vconfig.LibvirtConfigGuest()
        guest.name, guest.virt_type, guest.os_type = "instance-00000001", "kvm", "hvm"
        slot = Slot.parse("0000:3b:00.1/vf/0")
        plain = guest_config.GuestVirtualFunction(slot.parent, managed=True)
        guest_config.add_vgpus(guest, {slot: plain})
        (function,) = etree.fromstring(guest.to_xml()).findall("devices/hostdev")
        self.assertEqual(("pci", "yes"), (function.get("type"), function.get("managed")))
