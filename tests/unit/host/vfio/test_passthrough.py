# SPDX-License-Identifier: Apache-2.0

from nova_gpu.core import model
from nova_gpu.core.guest import address_space
from nova_gpu.host.vfio import passthrough
from tests.fixtures import hosts, pci
from tests.fixtures.bases.host import HostTestCase

CARD, AUDIO = "0000:81:00.0", "0000:81:00.1"


class PassthroughTestCase(HostTestCase):
    def add(self, product_id: str = "1e04", **attributes: object) -> None:
        self.host.add_gpu(CARD, "10de", product_id, companions=(pci.AUDIO,), **attributes)

    def gpu(self) -> model.GPU:
        return self.gpu_at(CARD)

    def reasons(self) -> list[str]:
        return list(passthrough.obstacles(self.gpu(), self.host.roots))

    def reason(self) -> str:
        (reason,) = self.reasons()
        self.assertEqual(reason, passthrough.obstacle(self.gpu(), self.host.roots))
        return reason


class TestObstacles(PassthroughTestCase):
    def test_none(self) -> None:
        self.add()
        self.assertEqual([], self.reasons())
        self.assertIsNone(passthrough.obstacle(self.gpu(), self.host.roots))

    def test_not_behind_the_iommu(self) -> None:
        self.add()
        name = self.host.path(CARD) / "iommu_group/name"
        name.write_text("vfio-noiommu\n")
        self.assertIn("no-IOMMU mode", self.reason())
        name.unlink()
        (self.host.path(AUDIO) / "iommu_group").unlink()
        self.assertIn(f"does not cover {AUDIO}", self.reason())

    def test_bridges_are_no_strangers(self) -> None:
        port = self.host.add_bridge("0000:80:01.0", iommu_group=99)
        self.add(iommu_group=99, parent=port)
        self.assertEqual([], self.reasons())

    def test_strangers(self) -> None:
        self.add(iommu_group=99)
        for address, driver in (("0000:82:00.0", "e1000e"), ("0000:83:00.0", None)):
            self.host.add_device(
                address, "8086", "10d3", class_code=0x020000, iommu_group=99, driver=driver
            )
        reason = self.reason()
        self.assertIn("group 99", reason)
        self.assertIn("0000:82:00.0 (e1000e), 0000:83:00.0 (no driver)", reason)

    def test_other_functions_of_a_card(self) -> None:
        """The USB controllers of a GeForce RTX 2080, and sound by QEMU's intel-hda"""
        self.host.add_gpu(CARD, "10de", "1e04", companions=(pci.AUDIO, 0x0C0330, 0x0C8000))
        self.assertEqual([], self.reasons())
        self.host = hosts.Host(self.root / "virtual")
        self.host.add_gpu(CARD, "10de", "1091", driver="vfio-pci", iommu_group=99)
        ids, kind = ("8086", "2668"), {"class_code": pci.AUDIO, "driver": "snd_hda_intel"}
        self.host.add_device(AUDIO, *ids, iommu_group=99, **kind)
        self.assertEqual([], self.reasons())

    def test_strangers_of_a_companion(self) -> None:
        self.add()
        group = (self.host.path(AUDIO) / "iommu_group").resolve()
        (self.host.path(AUDIO) / "iommu_group").unlink()
        (group / "devices" / AUDIO).unlink()
        self.host.add_device("0000:82:00.0", "8086", "10d3", class_code=0x020000, iommu_group=99)
        group = (self.host.path("0000:82:00.0") / "iommu_group").resolve()
        pci.link(self.host.path(AUDIO) / "iommu_group", group)
        pci.link(group / "devices" / AUDIO, self.host.path(AUDIO))
        self.assertIn("0000:82:00.0", self.reason())

    def test_an_nvswitch_is_a_stranger_although_it_is_a_bridge_by_class(self) -> None:
        self.add(iommu_group=99)
        self.host.add_device("0000:05:00.0", "10de", "22a3", class_code=0x068000, iommu_group=99)
        self.assertIn("0000:05:00.0", self.reason())

    def test_reserved_regions(self) -> None:
        self.add()
        self.host.reserve(AUDIO, "direct-relaxable")
        self.assertEqual([], self.reasons())
        self.host.reserve(CARD, "direct")
        self.assertIn("0x00000000dd800000-0x00000000de7fffff", self.reason())
        self.assertIn("RMRR", next(passthrough.lasting_obstacles(self.gpu(), self.host.roots)))
        (self.host.path(CARD) / "iommu_group/reserved_regions").unlink()
        self.assertIn("reserved_regions", self.reason())

    def test_virtual_functions(self) -> None:
        self.add("2335", totalvfs=16)
        self.host.add_vf(CARD, "0000:81:00.4")
        self.assertIn("1 SR-IOV virtual functions", self.reason())

    def test_a_card_that_is_gone(self) -> None:
        self.add()
        gpu = self.gpu()
        for address in (AUDIO, CARD):
            self.host.remove(address)
        self.assertIn(CARD, str(passthrough.obstacle(gpu, self.host.roots)))

    def test_all_are_said(self) -> None:
        self.add(iommu_group=99, mapped_mib=1024 * 1024)
        self.host.add_gpu("0000:82:00.0", "10de", "1e04", iommu_group=99)
        self.host.show_firmware(CARD)
        self.assertEqual(3, len(self.reasons()), self.reasons())


class TestMemory(PassthroughTestCase):
    def test_what_a_card_takes(self) -> None:
        self.add(mapped_mib=128 * 1024)
        taken = passthrough.card_bars(self.gpu(), self.host.roots)
        self.assertEqual(256 * address_space.GIB, address_space.window(taken))

    def test_memory_that_no_bar_has(self) -> None:
        self.host.add_gpu("0009:01:00.0", "10de", "2342", driver="nvgrace-gpu-vfio-pci")
        (superchip,) = (g for g in self.host.gpus() if g.product.product_id == "2342")
        for judge in (passthrough.obstacles, passthrough.lasting_obstacles):
            (reason,) = judge(superchip, self.host.roots)
            self.assertIn("is coherent with the processor's", reason)

    def test_larger_than_the_operator_says(self) -> None:
        self.add("26b9", mapped_mib=64 * 1024)
        bits = address_space.Bits(40, 46, given_gib=127)
        reason = passthrough.obstacle(self.gpu(), self.host.roots, bits) or ""
        self.assertIn("L40S maps 128 GiB", reason)
        self.assertIn("[gpu]guest_mmio_gib says that a guest has room for 127 GiB", reason)
        bits = address_space.Bits(40, 40, given_gib=128)
        self.assertIsNone(passthrough.obstacle(self.gpu(), self.host.roots, bits))

    def test_unreadable(self) -> None:
        self.add()
        (self.host.path(CARD) / "resource").write_text("nonsense\n")
        self.assertIn("its files in sysfs cannot be read", self.reason())


class TestSwitchedBoards(PassthroughTestCase):
    """What keeps such a card from being prepared; Fabric Manager says more of one that is not"""

    def reasons(self) -> list[str]:
        return list(passthrough.lasting_obstacles(self.gpu(), self.host.roots))

    def switch(self) -> None:
        self.host.add_device("0000:05:00.0", "10de", "22a3", class_code=0x068000)

    def assertSaid(self, reason: str | None) -> None:
        self.assertEqual(reason is not None, bool(self.reasons()))
        self.assertIn(reason or "", "".join(self.reasons()))

    def test_products(self) -> None:
        modules = ("2324", "2328", "2329", "232c", "230c", "1db8", "20b2")  # by name no module
        slots = ("2331", "233b", "2313", "2321", "20f1", "1db4", "2236", "2235", "2204", "26b9")
        fifth = "HGX board: its NVSwitches are of the fifth"
        for product_ids, alone, beside_switches in (
            (("2330",), None, "H100 SXM5 80GB is a module of an HGX board"),
            (modules, None, "HGX"),
            (("2901", "2909", "3182"), fifth, fifth),  # switches that are not seen
            (slots, None, None),
            (("ffff",), None, "10de:ffff"),
        ):
            for product_id in product_ids:
                with self.subTest(product_id):
                    self.host = hosts.Host(self.root / product_id)
                    self.add(product_id)
                    self.assertSaid(alone)
                    self.switch()
                    self.assertSaid(beside_switches)
        self.host = hosts.Host(self.root / "of-another-vendor")
        self.host.add_gpu(CARD, "1002", "74a1")
        self.switch()
        self.assertSaid(None)

    def test_a_switch_is_read_once(self) -> None:
        self.add("2330")
        self.switch()
        self.assertIn("HGX board", *self.reasons())
        (self.host.path("0000:05:00.0") / "vendor").unlink()
        self.assertIn("HGX board", *self.reasons())
        self.host.remove("0000:05:00.0")
        self.assertEqual([], self.reasons())

    def test_switches_of_a_service_vm(self) -> None:
        self.add("2330")
        self.switch()
        self.host.bind("0000:05:00.0", "vfio-pci")
        (reason,) = self.reasons()
        self.assertIn("its NVSwitch 0000:05:00.0 is bound to vfio-pci", reason)
        self.assertIn(reason, passthrough.obstacles(self.gpu(), self.host.roots))
