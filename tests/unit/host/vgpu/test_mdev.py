# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu import vgpu as values
from nova_gpu.host.vgpu import mdev
from tests.fixtures import pci, vgpu
from tests.fixtures.bases.host import HostTestCase

CARD = "0000:3b:00.0"


class MdevTestCase(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "10de", "1bb3")
        self.device = f"{self.host.devices}/{CARD}"
        self.types = self.host.path(CARD) / "mdev_supported_types"

    def facts(self, type_id: str) -> values.VGPUType:
        found = mdev.facts(self.device, type_id)
        assert found is not None
        return found


class TestTypes(MdevTestCase):
    def test_nvidia(self) -> None:
        vgpu.add_types(self.host, CARD, vgpu.TESLA_P4)
        self.assertEqual(
            ("nvidia-63", "nvidia-64", "nvidia-65", "nvidia-66"), mdev.types(self.device)
        )
        self.assertEqual(
            values.VGPUType("nvidia-64", "GRID P4-2Q", 2048, 4, (7680, 4320), per_card=4),
            self.facts("nvidia-64"),
        )

    def test_intel(self) -> None:
        vgpu.add_types(self.host, CARD, vgpu.INTEL_GVT)
        self.assertEqual(
            values.VGPUType("i915-GVTg_V5_4", None, 640, None, (1920, 1200)),
            self.facts("i915-GVTg_V5_4"),
        )

    def test_the_kernels_samples(self) -> None:
        vgpu.add_types(self.host, CARD, vgpu.SAMPLES)
        for type_id, memory_mib, resolution in (
            ("nvidia-small", 4, None),
            ("nvidia-large", 16, None),
            ("mdpy-xga", None, (1024, 768)),
            ("mtty-2", None, None),
        ):
            with self.subTest(type_id):
                found = self.facts(type_id)
                self.assertEqual((memory_mib, resolution), (found.memory_mib, found.resolution))

    def test_what_no_pci_guest_takes_has_no_facts(self) -> None:
        vgpu.add_types(self.host, CARD, vgpu.SAMPLES)
        self.assertIsNone(mdev.facts(self.device, "vfio_ccw-io"))
        self.assertIsNone(mdev.facts(self.device, "not-there"))

    def test_other_words_say_nothing(self) -> None:
        for text in (
            "",
            "framebuffer=, num_heads=x",
            "framebuffer=2048",
            "framebuffer=2048G",
            "framebuffer=-1M, num_heads=0, max_instance=٣",
            "low_gm_size: 128MB",
            "max_resolution=7680",
            "virtual display, 9999999999 MB video memory",
        ):
            with self.subTest(text):
                bare = values.VGPUType("nvidia-1")
                self.assertEqual(bare, mdev.described(bare, text))


class TestAvailable(MdevTestCase):
    def test_unknown_is_none(self) -> None:
        vgpu.add_types(self.host, CARD, vgpu.TESLA_P4)
        path = self.types / "nvidia-64/available_instances"
        for text in ("", "-1", "four", "0x4"):
            path.write_text(text)
            self.assertEqual(0, mdev.available(self.device, "nvidia-64"), text)
        path.unlink()
        self.assertEqual(0, mdev.available(self.device, "nvidia-64"))


class TestDevices(MdevTestCase):
    def test_parent_and_type(self) -> None:
        vgpu.add_types(self.host, CARD, vgpu.TESLA_P4)
        one = vgpu.make(self.host, CARD, "nvidia-64")
        two = vgpu.make(self.host, CARD, "nvidia-63", "A2BB6A3D-5C74-4C8C-9A0A-8F5A1F2D3E4F")
        parent = PciAddress.parse(CARD)
        self.assertEqual(
            {
                one: mdev.MediatedDevice(parent, "nvidia-64"),
                two.lower(): mdev.MediatedDevice(parent, "nvidia-63"),
            },
            mdev.devices(self.host.roots),
        )

    def test_of_another_bus(self) -> None:
        # /sys/devices/virtual/mtty/mtty of the kernel's sample driver
        device = self.host.roots.sysfs / "devices/virtual/mtty/mtty"
        (device / "mdev_supported_types/mtty-2").mkdir(parents=True)
        uuid = "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"
        (device / uuid).mkdir()
        pci.link(device / uuid / "mdev_type", device / "mdev_supported_types/mtty-2")
        bus = self.host.roots.sysfs / "bus/mdev/devices"
        bus.mkdir(parents=True)
        pci.link(bus / uuid, device / uuid)
        self.assertEqual({uuid: mdev.MediatedDevice(None, "mtty-2")}, mdev.devices(self.host.roots))

    def test_one_that_goes_meanwhile(self) -> None:
        vgpu.add_types(self.host, CARD, vgpu.TESLA_P4)
        uuid = vgpu.make(self.host, CARD, "nvidia-64")
        (self.host.path(CARD) / uuid / "mdev_type").unlink()
        self.assertEqual({}, mdev.devices(self.host.roots))

    def test_what_cannot_be_listed_is_no_empty_list(self) -> None:
        bus = self.host.roots.sysfs / "bus/mdev"
        bus.mkdir()
        (bus / "devices").write_text("")
        self.assertRaises(OSError, mdev.devices, self.host.roots)
