# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os

from nova_gpu.core import model
from nova_gpu.host.vfio import boot_configuration
from tests.fixtures import pci
from tests.fixtures.bases.host import HostTestCase

ONE, TWO = "0000:81:00.0", "0000:82:00.0"


class TestBoot(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.modules = self.root / "lib/modules" / os.uname().release

    def cards(self, *addresses: str) -> tuple[model.GPU, ...]:
        return tuple(map(self.gpu_at, addresses))

    def test_ids(self) -> None:
        self.host.add_gpu(ONE, "10de", "1e04", companions=(pci.AUDIO,))
        self.host.add_gpu(TWO, "10de", "2335", companions=(pci.AUDIO,))
        ids, shared = boot_configuration.own_ids(self.cards(ONE), self.host.roots)
        self.assertEqual(["10de:1e04"], ids)
        self.assertEqual(
            {"0000:81:00.1": "0000:82:00.1"}, {str(key): name for key, name in shared.items()}
        )
        ids, shared = boot_configuration.own_ids(self.cards(ONE, TWO), self.host.roots)
        self.assertEqual((["10de:10f0", "10de:1e04", "10de:2335"], {}), (ids, shared))

    def test_kernel_arguments(self) -> None:
        cpuinfo = self.host.roots.proc / "cpuinfo"
        for vendor, arguments in (
            ("GenuineIntel", ["intel_iommu=on", "iommu=pt"]),
            ("AuthenticAMD", ["iommu=pt"]),
            (None, []),
        ):
            cpuinfo.write_text(f"vendor_id\t: {vendor}\n") if vendor else cpuinfo.unlink()
            self.assertEqual(
                arguments,
                boot_configuration.kernel_arguments(["10de:1e04"], self.root, self.host.roots),
            )
        self.modules.mkdir(parents=True)
        (self.modules / "modules.builtin").write_text("kernel/drivers/vfio/pci/vfio-pci.ko\n")
        self.assertEqual(
            ["vfio-pci.ids=10de:1e04"],
            boot_configuration.kernel_arguments(["10de:1e04"], self.root, self.host.roots),
        )

    def test_texts(self) -> None:
        texts = boot_configuration.texts(["10de:10f7", "10de:1e04"], ["iommu=pt"], self.root)
        self.assertIsNone(texts[boot_configuration.GRUB])
        lines = str(texts[boot_configuration.MODPROBE]).splitlines()
        self.assertIn("options vfio-pci ids=10de:10f7,10de:1e04", lines)
        for module in ("nvidia", "amdgpu", "snd_hda_intel", "xhci_pci"):
            self.assertIn(f"softdep {module} pre: vfio-pci", lines)
        (self.root / boot_configuration.GRUB).parent.mkdir(parents=True)
        texts = boot_configuration.texts(["10de:1e04"], ["iommu=pt"], self.root)
        self.assertIn(
            '\nGRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX iommu=pt"\n', texts[boot_configuration.GRUB]
        )
        self.assertIsNone(
            boot_configuration.texts(["10de:1e04"], [], self.root)[boot_configuration.GRUB]
        )
