# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest
from typing import Any

from lxml import etree
from nova.virt.libvirt import config as vconfig

from nova_gpu.core.contents import GuestContents, Mount
from nova_gpu.virt.delivery import guest
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
        guest.add_gpus(config, ADDRESSES, CONTENTS)
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
        guest.isolate(config)
        self.assertIsNotNone(etree.fromstring(config.to_xml()).find("features/privnet"))


class IDMapTest(unittest.TestCase):
    def test_sent_as_plain_numbers_and_rendered_as_before(self) -> None:
        for kind in (vconfig.LibvirtConfigGuestUIDMap, vconfig.LibvirtConfigGuestGIDMap):
            with self.subTest(kind=kind.__name__):
                plain = kind()
                plain.start, plain.target, plain.count = 0, 1000000, 65536
                found = guest.id_map(plain)
                self.assertIsInstance(found, tuple)
                self.assertEqual((0, 1000000, 65536), tuple(found))
                # nova tells uid maps from gid maps by their class
                self.assertIsInstance(found, kind)
                self.assertEqual(plain.to_xml(), found.to_xml())
