# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pathlib

import fixtures
from oslotest import base

from nova_gpu.core import exception, model
from nova_gpu.host import boot, discovery
from nova_gpu.host.selection import Selection
from tests.fixtures import hosts, pci

ONE, TWO = "0000:81:00.0", "0000:82:00.0"


class TestFunctions(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.Host(pathlib.Path(self.useFixture(fixtures.TempDir()).path))

    def cards(self, *addresses: str) -> tuple[model.GPU, ...]:
        named = frozenset(map(model.PciAddress.parse, addresses))
        return discovery.discover(self.host.roots, Selection(frozenset(), named), {}, dict)

    def test_every_function(self) -> None:
        self.host.add_gpu(ONE, "10de", "1e04", companions=(pci.AUDIO,))
        found = boot.functions(self.cards(ONE), self.host.roots)
        self.assertEqual(
            [(ONE, "1e04", False), ("0000:81:00.1", "10f0", False)],
            [(str(each.address), each.product_id, each.shared) for each in found],
        )

    def test_ids_of_a_card_that_stays_with_the_host(self) -> None:
        self.host.add_gpu(ONE, "10de", "1e04", companions=(pci.AUDIO,))
        self.host.add_gpu(TWO, "10de", "2335", companions=(pci.AUDIO,))
        found = boot.functions(self.cards(ONE), self.host.roots)
        self.assertEqual([False, True], [each.shared for each in found])
        found = boot.functions(self.cards(ONE, TWO), self.host.roots)
        self.assertEqual([False] * 4, [each.shared for each in found])

    def test_module_of_the_driver(self) -> None:
        self.host.add_gpu(ONE, "10de", "1e04", driver="bochs-drm", companions=(pci.AUDIO,))
        driver = self.host.roots.sysfs / "bus/pci/drivers/bochs-drm"
        module = self.host.roots.sysfs / "module/bochs"
        module.mkdir(parents=True)
        pci.link(driver / "module", module)
        found = boot.functions(self.cards(ONE), self.host.roots)
        self.assertEqual(["bochs", None], [each.module for each in found])
        self.host.bind(ONE, "vfio-pci")
        found = boot.functions(self.cards(ONE), self.host.roots)
        self.assertEqual([None, None], [each.module for each in found])

    def test_unreadable_host(self) -> None:
        self.host.add_gpu(ONE, "10de", "1e04")
        cards = self.cards(ONE)
        self.host.devices.rename(self.host.devices.with_name("gone"))
        self.assertRaises(exception.DiscoveryFailed, boot.functions, cards, self.host.roots)


class TestHost(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.host = hosts.Host(self.root)
        self.modules = self.root / "lib/modules" / os.uname().release

    def test_nothing(self) -> None:
        host = boot.host(self.root, self.host.roots)
        self.assertIsNone(host.cpu_vendor)
        self.assertFalse(host.built_in or host.initramfs_tools or host.dracut or host.grub_d)
        self.assertIsNone(boot.module_kind(self.root))

    def test_debian(self) -> None:
        for folder in ("etc/initramfs-tools/hooks", "etc/default/grub.d"):
            (self.root / folder).mkdir(parents=True)
        (self.host.roots.proc / "cpuinfo").write_text(
            "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\n"
        )
        host = boot.host(self.root, self.host.roots)
        self.assertEqual("AuthenticAMD", host.cpu_vendor)
        self.assertTrue(host.initramfs_tools and host.grub_d)
        self.assertFalse(host.dracut)

    def test_how_the_kernel_has_vfio_pci(self) -> None:
        self.modules.mkdir(parents=True)
        (self.modules / "modules.dep").write_text(
            "kernel/a.ko.xz: kernel/drivers/vfio/pci/vfio-pci.ko.xz\n"
        )
        self.assertIsNone(boot.module_kind(self.root))
        (self.modules / "modules.dep").write_text(
            "kernel/drivers/vfio/pci/vfio-pci.ko.xz: kernel/drivers/vfio/vfio.ko.xz\n"
        )
        self.assertEqual("dep", boot.module_kind(self.root))
        (self.modules / "modules.builtin").write_text("kernel/drivers/vfio/pci/vfio-pci.ko\n")
        self.assertEqual("builtin", boot.module_kind(self.root))
