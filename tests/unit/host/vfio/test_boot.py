# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pathlib

import fixtures
from oslotest import base

from nova_gpu.core import boot_files, exception, model
from nova_gpu.host.pci import discovery
from nova_gpu.host.pci.selection import Selection
from nova_gpu.host.vfio import boot
from tests.fixtures import hosts, pci

ONE, TWO = "0000:81:00.0", "0000:82:00.0"


class TestFunctions(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.host = hosts.Host(self.root)

    def functions(self, *addresses: str) -> tuple[boot_files.Function, ...]:
        return boot.functions(self.cards(*addresses), self.root, self.host.roots)

    def cards(self, *addresses: str) -> tuple[model.GPU, ...]:
        named = frozenset(map(model.PciAddress.parse, addresses))
        return discovery.discover(self.host.roots, Selection(frozenset(), named), {}, dict)

    def test_every_function(self) -> None:
        self.host.add_gpu(ONE, "10de", "1e04", companions=(pci.AUDIO,))
        found = self.functions(ONE)
        self.assertEqual(
            [(ONE, "1e04", ()), ("0000:81:00.1", "10f0", ())],
            [(str(each.address), each.product_id, each.shared) for each in found],
        )

    def test_ids_of_a_card_that_stays_with_the_host(self) -> None:
        self.host.add_gpu(ONE, "10de", "1e04", companions=(pci.AUDIO,))
        self.host.add_gpu(TWO, "10de", "2335", companions=(pci.AUDIO,))
        found = self.functions(ONE)
        self.assertEqual([(), ("0000:82:00.1",)], [each.shared for each in found])
        found = self.functions(ONE, TWO)
        self.assertEqual([()] * 4, [each.shared for each in found])

    def test_modules_that_would_take_it(self) -> None:
        """Whoever has it now: otherwise the files would change once the card is prepared."""
        self.host.add_gpu(ONE, "10de", "1e04", class_code=pci.VGA, companions=(pci.AUDIO,))
        modules = self.root / "lib/modules" / os.uname().release
        modules.mkdir(parents=True)
        (modules / "modules.alias").write_text(
            "# Aliases extracted from modules themselves.\n"
            "alias pci:v000010DEd*sv*sd*bc03sc00i00* nouveau\n"
            "alias pci:v000010DEd*sv*sd*bc03sc02i00* nouveau\n"
            "alias pci:v000010DEd00001E04sv*sd*bc*sc*i* nvidia\n"
            "alias pci:v00001002d00001E04sv*sd*bc*sc*i* amdgpu\n"
            "alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci\n"
            "alias pci:v000010DEd*sv*sd*bc04sc03i00* snd_hda_intel\n"
        )
        for driver in ("nvidia", "vfio-pci"):
            self.host.bind(ONE, driver)
            self.assertEqual(
                [("nouveau", "nvidia"), ("snd_hda_intel",)],
                [each.modules for each in self.functions(ONE)],
            )

    def test_unreadable_host(self) -> None:
        self.host.add_gpu(ONE, "10de", "1e04")
        cards = self.cards(ONE)
        self.host.devices.rename(self.host.devices.with_name("gone"))
        self.assertRaises(
            exception.DiscoveryFailed, boot.functions, cards, self.root, self.host.roots
        )


class TestHost(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.host = hosts.Host(self.root)
        self.modules = self.root / "lib/modules" / os.uname().release

    def test_nothing(self) -> None:
        (self.host.roots.proc / "cpuinfo").unlink()
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
