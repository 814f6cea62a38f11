# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import dataclasses
import subprocess

from oslotest import base

from nova_gpu.core import boot_files
from nova_gpu.core.model import PciAddress

DEBIAN = boot_files.Host("GenuineIntel", False, initramfs_tools=True, dracut=False, grub_d=True)
FEDORA = boot_files.Host("AuthenticAMD", False, initramfs_tools=False, dracut=True, grub_d=False)


def function(address: str, ids: str, class_code: int, **more: object) -> boot_files.Function:
    return boot_files.Function(PciAddress.parse(address), *ids.split(":"), class_code, **more)


CARD = function("0000:81:00.0", "10de:1e04", 0x030000, modules=("snd_of_another_name",))
AUDIO = function("0000:81:00.1", "10de:10f7", 0x040300)
CONTROLLER = function("0000:81:00.2", "10de:1ad6", 0x0C0330)


class TestFiles(base.BaseTestCase):
    def texts(self, functions: tuple[boot_files.Function, ...], host: boot_files.Host) -> dict:
        return {file.path: file.text for file in boot_files.files(functions, host)}

    def test_debian(self) -> None:
        files = self.texts((CARD, AUDIO, CONTROLLER), DEBIAN)
        self.assertEqual(
            {
                boot_files.MODPROBE,
                boot_files.MODULES_LOAD,
                boot_files.INITRAMFS_TOOLS,
                boot_files.GRUB,
            },
            files.keys(),
        )
        lines = files[boot_files.MODPROBE].splitlines()
        self.assertIn("options vfio-pci ids=10de:10f7,10de:1ad6,10de:1e04", lines)
        for module in ("nvidia", "snd_of_another_name", "snd_hda_intel", "xhci_pci"):
            self.assertIn(f"softdep {module} pre: vfio-pci", lines)
        self.assertNotIn("softdep amdgpu pre: vfio-pci", lines)
        self.assertIn("\nvfio-pci\n", files[boot_files.MODULES_LOAD])
        self.assertIn(
            'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX intel_iommu=on iommu=pt"\n',
            files[boot_files.GRUB],
        )

    def test_the_hook_is_a_program(self) -> None:
        (hook,) = (
            f for f in boot_files.files((CARD,), DEBIAN) if f.path == boot_files.INITRAMFS_TOOLS
        )
        self.assertEqual(0o755, hook.mode)
        done = subprocess.run(["sh", "-n"], input=hook.text, text=True, check=False)
        self.assertEqual(0, done.returncode)
        done = subprocess.run(["sh", "-s", "prereqs"], input=hook.text, text=True, check=False)
        self.assertEqual(0, done.returncode)

    def test_dracut(self) -> None:
        files = self.texts((CARD,), FEDORA)
        self.assertEqual(
            {boot_files.MODPROBE, boot_files.MODULES_LOAD, boot_files.DRACUT}, files.keys()
        )
        self.assertIn('force_drivers+=" vfio-pci "\n', files[boot_files.DRACUT])
        self.assertIn(boot_files.MODPROBE, files[boot_files.DRACUT])

    def test_ids_that_others_have_too(self) -> None:
        audio = dataclasses.replace(AUDIO, shared=("0000:c1:00.1",))
        for host in (DEBIAN, FEDORA):
            files = self.texts((CARD, audio), host)
            self.assertIn("ids=10de:1e04\n", files[boot_files.MODPROBE])
            named, *rules = files[boot_files.UDEV].splitlines()[1:]
            self.assertEqual("# Not by its ids 10de:10f7, which 0000:c1:00.1 has too.", named)
            self.assertEqual(1, len(rules))
            self.assertIn('KERNEL=="0000:81:00.1"', rules[0])
            self.assertIn('ATTR{driver_override}="vfio-pci"', rules[0])
        self.assertIn(boot_files.UDEV, files[boot_files.DRACUT])

    def test_all_shared(self) -> None:
        card = dataclasses.replace(CARD, shared=("0000:c1:00.1",))
        files = self.texts((card,), DEBIAN)
        self.assertNotIn("ids=", files[boot_files.MODPROBE])
        self.assertIn("softdep nvidia pre: vfio-pci", files[boot_files.MODPROBE])

    def test_no_card(self) -> None:
        self.assertEqual((), boot_files.files((), DEBIAN))


class TestKernelArguments(base.BaseTestCase):
    def test_by_processor(self) -> None:
        for vendor, arguments in (
            ("GenuineIntel", ("intel_iommu=on", "iommu=pt")),
            ("AuthenticAMD", ("iommu=pt",)),
            (None, ()),
        ):
            host = dataclasses.replace(DEBIAN, cpu_vendor=vendor)
            self.assertEqual(arguments, boot_files.kernel_arguments((CARD,), host))

    def test_vfio_pci_that_is_part_of_the_kernel(self) -> None:
        host = dataclasses.replace(FEDORA, built_in=True)
        audio = dataclasses.replace(AUDIO, shared=("0000:c1:00.1",))
        arguments = boot_files.kernel_arguments((CARD, audio), host)
        self.assertEqual(("iommu=pt", "vfio-pci.ids=10de:1e04"), arguments)
