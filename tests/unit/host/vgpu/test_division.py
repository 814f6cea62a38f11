# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from types import MappingProxyType

import fixtures

from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu import vgpu as values
from nova_gpu.host import child_process
from nova_gpu.host.vgpu import division, gim, mdev, sriov
from tests.fixtures import hosts, pci, vgpu
from tests.fixtures.bases.host import HostTestCase

ONE, TWO = "0000:3b:00.0", "0000:82:00.0"


class TestDivided(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu.host.vgpu.division"))

    types: division.TypesByFunction = MappingProxyType({})

    def divided(self) -> dict[str, values.DividedCard]:
        divided_cards = division.divided(self.host.gpus(), self.host.roots, self.types)
        return {str(address): card for address, card in divided_cards.items()}

    def add_plain(self, address: str, *quotas_gib: int) -> list[str]:
        """A B60 whose driver says how much memory each function has, or 0"""
        self.host.add_gpu(address, "8086", "e211", totalvfs=12)
        for number, quota in enumerate(quotas_gib, 1):
            file = self.host.path(address) / f"sriov_admin/vf{number}/profile/vram_quota"
            pci.write(file, f"{quota << 30}\n")
        return vgpu.add_functions(self.host, address, len(quotas_gib))

    def test_cards_whose_functions_are_plain(self) -> None:
        """Since Linux 7.0 xe says what memory each has."""
        functions = [*self.add_plain(ONE, 4, 4), *self.add_plain(TWO, 4, 4)]
        cards = self.divided()
        for address in (ONE, TWO):
            facts = values.VGPUType("vf", "vf-of-2", memory_mib=4096, per_card=2)
            self.assertEqual({"vf": facts}, cards[address].types)
        plain = values.Parent(values.VGPUKind.PLAIN, {"vf": 1}, {})
        parents = {**cards[ONE].parents, **cards[TWO].parents}
        self.assertEqual(dict.fromkeys(functions, plain), {str(a): parents[a] for a in parents})

    def test_memory_by_intels_i915(self) -> None:
        """For data centers, on each tile"""
        self.host.add_gpu(ONE, "8086", "56c0", totalvfs=31)
        vgpu.add_functions(self.host, ONE, 1)
        for tile in ("gt0", "gt1"):
            folder = self.host.path(ONE) / f"drm/card0/prelim_iov/vf1/{tile}"
            pci.write(folder / "lmem_quota", f"{2 << 30}\n")
        self.assertEqual(4096, self.divided()[ONE].types["vf"].memory_mib)

    def test_plain_functions_that_differ(self) -> None:
        cases: tuple[tuple[tuple[int, ...], dict[str, tuple[object, ...]]], ...] = (
            ((12, 12), {"vf-of-2-12288mib": ("vf-of-2", 12288, 2)}),
            ((0, 0), {"vf-of-2": ("vf-of-2", None, 2)}),
            (
                (16, 6, 0),
                {
                    "vf-of-3-16384mib": (None, 16384, 1),
                    "vf-of-3-6144mib": (None, 6144, 1),
                    "vf-of-3": (None, None, 1),
                },
            ),
        )
        for quotas, types in cases:
            with self.subTest(quotas):
                self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
                self.add_plain(ONE, *quotas)
                self.add_plain(TWO, 4, 4, 4, 4)
                cards = self.divided()
                types["vf"] = (None, None, 0)  # for instances that have one by this name
                self.assertEqual(
                    types,
                    {t.id: (t.name, t.memory_mib, t.per_card) for t in cards[ONE].types.values()},
                )
                self.assertEqual(["vf-of-4-4096mib", "vf"], [*cards[TWO].types])

    def test_partition_modes(self) -> None:
        """Of AMD's cards: named where they do not follow from the number of functions"""
        expected = {}
        for bus, (number, compute, memory, name) in enumerate(
            (
                (1, "SPX", "NPS1", "vf-of-1"),
                (1, "CPX", "NPS4", "vf-of-1-cpx-nps4"),
                (2, "DPX", "NPS1", "vf-of-2"),
                (8, "CPX", "NPS1", "vf-of-8"),
                (8, "CPX", "NPS4", "vf-of-8-cpx-nps4"),
                (4, "failed to get current sp mode", "UNKNOWN", "vf-of-4"),
            )
        ):
            address = f"0000:{bus:02x}:00.0"
            self.host.add_gpu(address, "1002", "74a1", class_code=0x120000, totalvfs=8)
            vgpu.add_functions(self.host, address, number)
            vgpu.set_partition(self.host, address, compute, memory)
            expected[address] = name
        cards = [gpu.address for gpu in self.host.gpus()]
        modes = gim.modes(cards, self.host.roots, 30)
        divided_cards = division.divided(self.host.gpus(), self.host.roots, modes=modes)
        names = {
            str(a): next(t.name for t in card.types.values()) for a, card in divided_cards.items()
        }
        self.assertEqual(expected, names)
        self.assertEqual(
            {*expected.values()},
            {next(iter(card.types)) for card in divided_cards.values()},
            "the ids",
        )
        self.host.remove(str(cards[0]))
        self.assertRaises(child_process.Failed, gim.modes, cards, self.host.roots, 30)

    def test_a_plain_function_that_cannot_be_read(self) -> None:
        """The types of the product's other cards keep their names."""
        self.add_plain(ONE, 4, 4)
        self.add_plain(TWO, 4, 4)
        file = self.host.path(ONE) / "sriov_admin/vf2/profile/vram_quota"
        file.unlink()
        file.mkdir()
        cards = self.divided()
        self.assertIn("does not tell how it is divided", str(cards[ONE].unread))
        self.assertEqual(["vf"], [*cards[TWO].types])

    def test_a_card_whose_functions_have_profiles(self) -> None:
        self.host.add_gpu(TWO, "10de", "26b9", totalvfs=3)
        functions = vgpu.add_functions(self.host, TWO, 3)
        vgpu.set_profiles(self.host, functions[0], {}, current=1147)
        # A function with a type can have no other, whatever the list says.
        vgpu.set_profiles(self.host, functions[1], vgpu.L40S, current=1145)
        vgpu.set_profiles(self.host, functions[2], {1147: "NVIDIA L40S-1Q"})
        card = self.divided()[TWO]
        self.assertEqual(
            [
                values.Parent(values.VGPUKind.TYPED, {}, {"nvidia-1147": 1}),
                values.Parent(values.VGPUKind.TYPED, {}, {"nvidia-1145": 1}),
                values.Parent(values.VGPUKind.TYPED, {"nvidia-1147": 1}, {}),
            ],
            list(card.parents.values()),
        )
        self.assertEqual(1024, card.types["nvidia-1145"].memory_mib)

    def test_where_a_vgpu_is_on_a_card(self) -> None:
        self.host.add_gpu(TWO, "10de", "26b9", totalvfs=3)
        for function, text in zip(
            vgpu.add_functions(self.host, TWO, 3), ("3", str(0xFFFFFFFF), "?"), strict=True
        ):
            vgpu.set_profiles(self.host, function, {}, current=1147)
            for name in ("gpu_instance_id", "placement_id"):
                pci.write(self.host.path(function) / "nvidia" / name, f"{text}\n")
        parents = self.divided()[TWO].parents.values()
        self.assertEqual([3, None, None], [parent.gpu_instance for parent in parents])
        self.assertEqual([3, None, None], [parent.place for parent in parents])

    def test_a_full_card_names_its_types_no_longer(self) -> None:
        self.host.add_gpu(TWO, "10de", "26b9", totalvfs=1)
        (function,) = vgpu.add_functions(self.host, TWO, 1)
        vgpu.set_profiles(self.host, function, {}, current=1156)
        self.assertEqual({"nvidia-1156": values.VGPUType("nvidia-1156")}, self.divided()[TWO].types)
        types = {
            type_id: values.VGPUType(type_id, "told") for type_id in ("nvidia-1155", "nvidia-1156")
        }
        self.types = {PciAddress.parse(function): types}
        self.assertEqual(types, self.divided()[TWO].types)

    def test_what_was_told_before_beside_a_card_that_tells_it_still(self) -> None:
        for address in (ONE, TWO):
            self.host.add_gpu(address, "10de", "26b9", totalvfs=1)
            (function,) = vgpu.add_functions(self.host, address, 1)
            vgpu.set_profiles(self.host, function, vgpu.L40S)
        types = self.divided()[TWO].types
        vgpu.set_profiles(self.host, function, {}, current=1156)
        self.types = {PciAddress.parse(function): types}
        self.assertEqual(types, self.divided()[TWO].types)

    def test_a_card_that_tells_of_more_than_can_be(self) -> None:
        vgpu.add_p4(self.host, ONE)
        path = self.host.path(ONE) / "mdev_supported_types/nvidia-64/available_instances"
        for number, is_known in (("4096", True), ("4097", False), ("9" * 4000, False)):
            path.write_text(number)
            card = self.divided()[ONE]
            self.assertEqual(is_known, card.unread is None, number)
            self.assertEqual(is_known, bool(card.parents), number)
        self.assertIn("says more than 4096", card.unread or "")

    def test_a_mediated_device_of_no_type(self) -> None:
        vgpu.add_p4(self.host, ONE, TWO)
        link = self.host.path(TWO) / vgpu.make(self.host, TWO, "nvidia-64") / "mdev_type"
        link.unlink()
        link.symlink_to("-1")
        divided_cards = self.divided()
        self.assertIsNone(divided_cards[ONE].unread)
        self.assertIn("a mediated device of the type '-1'", divided_cards[TWO].unread or "")


class ReadingsTest(HostTestCase):
    """A card of four functions, each with four types, that is looked at again and again"""

    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(ONE, "10de", "2235", totalvfs=4)
        self.functions = vgpu.add_functions(self.host, ONE, 4)
        for function in self.functions:
            vgpu.add_types(self.host, function, vgpu.TESLA_P4)
        self.readings: dict[PciAddress, division.Reading] = {}
        self.look()

    def look(self) -> values.DividedCard:
        cards = self.host.gpus()
        (divided_card,) = division.divided(cards, self.host.roots, readings=self.readings).values()
        return divided_card

    def reads(self) -> int:
        """How many files about what can be made one look opens"""
        available = self.useFixture(
            fixtures.MockPatchObject(mdev, "available", wraps=mdev.available)
        )
        self.look()
        return available.mock.call_count

    def of_type(self, type_id: str) -> list[int]:
        return [parent.available[type_id] for parent in self.look().parents.values()]

    def test_one_function_while_nothing_changes(self) -> None:
        card = self.look()
        for _ in range(5):
            self.assertEqual(4, self.reads())
            self.assertEqual(card, self.look())

    def test_what_was_made_and_removed(self) -> None:
        """NVIDIA's driver takes a type that is made from all functions of the card."""
        name = vgpu.make(self.host, self.functions[2], "nvidia-66")
        for function in self.functions:
            vgpu.set_available(self.host, function, {"nvidia-66": 0})
        self.assertEqual([0] * 4, self.of_type("nvidia-66"))
        (self.host.roots.sysfs / "bus/mdev/devices" / name).unlink()
        for function in self.functions:
            vgpu.set_available(self.host, function, {"nvidia-66": 1})
        self.assertEqual([1] * 4, self.of_type("nvidia-66"))

    def test_a_function_that_is_registered_late_or_anew(self) -> None:
        types = self.host.path(self.functions[3]) / "mdev_supported_types"
        away = types.rename(types.with_name("away"))
        self.assertEqual(3, len(self.look().parents))
        away.rename(types)
        self.assertEqual(4, len(self.look().parents))
        away = types.rename(types.with_name("away"))
        vgpu.add_types(self.host, self.functions[3], vgpu.TESLA_P4[:1])
        self.assertEqual(
            {"nvidia-63"}, self.look().parents[PciAddress.parse(self.functions[3])].available.keys()
        )


CARD = "0000:3b:00.0"


class MdevTestCase(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "10de", "1bb3")
        self.device = f"{self.host.devices}/{CARD}"
        self.types = self.host.path(CARD) / "mdev_supported_types"

    def facts(self, type_id: str) -> values.VGPUType:
        vgpu_type = mdev.facts(self.device, type_id)
        assert vgpu_type is not None
        return vgpu_type


class TestTypes(MdevTestCase):
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


class TestDevices(MdevTestCase):
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


OTHER = "0000:82:00.0"


class SriovTestCase(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(OTHER, "10de", "26b9", totalvfs=32)

    def device(self, address: str) -> str:
        return f"{self.host.devices}/{address}"


class TestFunctions(SriovTestCase):
    def test_in_the_order_of_their_numbers(self) -> None:
        added = vgpu.add_functions(self.host, OTHER, 12)
        functions = sriov.virtual_functions(self.device(OTHER))
        addresses = [str(function) for function in functions.values()]
        self.assertEqual((added, added), (addresses, list(functions)))
        self.assertEqual("0000:82:01.7", addresses[-1])

    def test_without_the_file_whose_reading_may_wait(self) -> None:
        vgpu.add_functions(self.host, OTHER, 2)
        (self.host.path(OTHER) / "sriov_numvfs").unlink()
        self.assertEqual(2, len(sriov.virtual_functions(self.device(OTHER))))


class TestProfiles(SriovTestCase):
    def setUp(self) -> None:
        super().setUp()
        (self.virtual,) = vgpu.add_functions(self.host, OTHER, 1)

    def profiles(self) -> sriov.Profiles | None:
        return sriov.profiles(self.device(self.virtual))

    def test_an_unreadable_type_is_no_free_function(self) -> None:
        vgpu.set_profiles(self.host, self.virtual, vgpu.L40S)
        path = self.host.path(self.virtual) / "nvidia/current_vgpu_type"
        for text in ("", "none", "-1", "1147 1148"):
            path.write_text(text)
            self.assertRaises(ValueError, self.profiles)

    def test_what_names_tell(self) -> None:
        """More of them: tests/recorded/names.yaml"""
        for name, memory_mib, slices in (
            ("GRID M60-0Q", 512, None),
            ("NVIDIA H200X-1-18C", 18432, 1),
            ("GRID A100-1-5CME", 5120, 1),
            ("NVIDIA Something New", None, None),
        ):
            facts = values.VGPUType("nvidia-1", name, memory_mib, slices=slices)
            self.assertEqual(facts, sriov.named("nvidia-1", name))
