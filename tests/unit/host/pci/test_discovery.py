# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from unittest import mock

import fixtures
from oslotest import base

from nova_gpu.core import exception, model
from nova_gpu.host import products
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.pci import discovery, selection
from tests.fixtures import hosts, pci
from tests.fixtures.bases.host import HostTestCase

DEFAULTS = selection.Selection.parse(["10de", "1002", "8086"], [], [])


def named(
    addresses: tuple[str, ...] = (), product_ids: tuple[str, ...] = ()
) -> selection.Selection:
    return selection.Selection.parse(["10de"], addresses, product_ids)


class DiscoveryTestCase(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu"))
        self.nvml = mock.Mock(return_value={})
        discovery._report_missing.cache_clear()
        discovery._report_unknown.cache_clear()

    def discover(
        self,
        selection: selection.Selection = DEFAULTS,
        overrides: Mapping[str, model.Product] | None = None,
    ) -> tuple[model.GPU, ...]:
        return discovery.discover(self.host.roots, selection, overrides or {}, self.nvml)

    def addresses(self, selection: selection.Selection = DEFAULTS) -> list[str]:
        return [str(gpu.address) for gpu in self.discover(selection)]

    def machine(self, name: str) -> None:
        self.host = hosts.build(name, self.root / name)

    def attribute(self, address: str, name: str) -> pathlib.Path:
        return self.host.devices / address / name


class TestMachines(DiscoveryTestCase):
    def test_mixed(self) -> None:
        self.machine("mixed")
        first, second, third, _, last = self.discover()
        self.assertEqual("0000:03:00.0", str(first.address))
        self.assertEqual(("cdna3", 0x120000), (first.product.architecture, first.class_code))
        self.assertEqual("xe", second.driver)
        companions = [f"0000:81:00.{number}" for number in (1, 2, 3)]
        self.assertEqual(companions, [str(companion) for companion in third.companions])
        self.assertEqual((0x10000, None), (last.address.domain, last.numa_node))

    def test_switches_of_an_hgx_board_are_no_cards(self) -> None:
        self.machine("h200-8")
        self.assertEqual(["10de:2335"] * 8, [gpu.product.key for gpu in self.discover()])

    def test_boot_display_and_bmc_if_named(self) -> None:
        self.machine("displays")
        for selected, addresses in (
            (DEFAULTS, ["0000:21:00.0", "0000:22:00.0"]),
            (named(product_ids=("10de:1e04",)), ["0000:21:00.0"]),
            (named(("0000:21:00.0",), ("1a03:2000",)), ["0000:02:00.0", "0000:21:00.0"]),
        ):
            self.assertEqual(addresses, self.addresses(selected))


class TestSelected(DiscoveryTestCase):
    def test_named_card_that_is_none_or_missing_is_said_once(self) -> None:
        self.machine("fermi-8")
        for address in ("0000:01:00.0", "0000:99:00.0"):
            for _ in range(2):
                self.assertEqual([], self.addresses(named((address,))))
            message = f"names {address}, but this host has no GPU there"
            self.assertEqual(1, self.log.output.count(message))


class TestFunctions(DiscoveryTestCase):
    def test_every_display_class_and_no_other(self) -> None:
        for bus, code in enumerate((0x030000, 0x030200, 0x038000, 0x120000, 0x030100, 0x040300)):
            self.host.add_gpu(f"0000:{bus:02x}:00.0", "1002", "74a1", class_code=code)
        self.assertEqual([f"0000:0{bus}:00.0" for bus in range(4)], self.addresses())

    def test_an_npu_beside_the_display_of_a_slot(self) -> None:
        self.host.add_device("0000:02:00.0", "8086", "7d1d", class_code=0x120000)
        self.host.add_device("0000:02:00.1", "8086", "7d55", class_code=pci.VGA)
        self.assertEqual(["0000:02:00.1"], self.addresses())

    def test_virtual_functions_are_neither_cards_nor_companions(self) -> None:
        self.host.add_gpu("0000:81:00.0", "10de", "2335", companions=(pci.AUDIO,), totalvfs=2)
        self.host.add_vf("0000:81:00.0", "0000:81:00.4", numa_node=0)
        self.host.add_vf("0000:81:00.0", "0000:81:01.0", numa_node=0)
        (gpu,) = self.discover()
        self.assertEqual("0000:81:00.0", str(gpu.address))
        self.assertEqual(["0000:81:00.1"], [str(companion) for companion in gpu.companions])
        self.assertEqual([], self.addresses(named(("0000:81:00.4",))))

    def test_second_display_of_a_slot_goes_with_the_first(self) -> None:
        self.host.add_gpu("0000:81:00.0", "1002", "74a1", companions=(0x038000,))
        self.assertEqual(["0000:81:00.0"], self.addresses())

    def test_what_the_kernel_does_not_say_is_none(self) -> None:
        self.host = hosts.Host(self.root / "bare", iommu=False)
        self.host.add_gpu("0000:82:00.0", "10de", "1023", driver=None, numa_node=None)
        self.attribute("0000:82:00.0", "numa_node").unlink()
        (gpu,) = self.discover()
        self.assertEqual((None, None, None), (gpu.numa_node, gpu.iommu_group, gpu.driver))


class TestProducts(DiscoveryTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu("0000:82:00.0", "10de", "2335")
        self.address = model.PciAddress.parse("0000:82:00.0")
        self.nvml.return_value = {
            self.address: nvml.NvmlFacts(
                name="H200",
                architecture="nvml",
                memory_mib=143771,
                compute_capability=(9, 0),
                uuid="GPU-1",
                links=(model.Link(self.address, model.LinkType.NVLINK, 18),),
            )
        }

    def test_whose_word_counts(self) -> None:
        """The operator's for a kind of board, for its product, NVML's, the table's"""
        board, apart = "10de:2335:10de:16c1 name=Own", "10de:2335:10de:16c1 provider=own"
        other = "10de:2335 architecture=own name=Other"
        for lines, name, architecture in (
            ([], "H200", "nvml"),
            (["10de:2335 architecture=own"], "H200", "own"),
            ([board, other], "Own", "own"),
            ([apart, other], "Other", "own"),
            ([board.replace("16c1", "16c2"), other], "Other", "own"),
        ):
            (gpu,) = self.discover(overrides=products.parse_overrides(lines))
            own = "10de:16c1" if apart in lines else None
            expected = model.Product("10de", "2335", name, architecture, 143771, (9, 0), own)
            self.assertEqual((expected, "10de:16c1"), (gpu.product, gpu.subsystem))
            self.assertEqual(("GPU-1", 18), (gpu.uuid, gpu.links[0].width))
        self.nvml.return_value = {}
        (gpu,) = self.discover()
        self.assertEqual(model.Product("10de", "2335", "H200 SXM 141GB", "hopper"), gpu.product)
        self.assertEqual((None, ()), (gpu.uuid, gpu.links))

    def test_unknown_architecture_is_said_once_per_product_with_the_remedy(self) -> None:
        self.host.add_gpu("0000:83:00.0", "10de", "fffe")
        self.host.add_gpu("0000:84:00.0", "10de", "fffe")
        for _ in range(2):
            gpus = self.discover()
        self.assertEqual([model.Product("10de", "fffe")] * 2, [gpu.product for gpu in gpus[1:]])
        self.assertEqual(1, self.log.output.count("10de:fffe is unknown"))
        self.assertIn("[gpu]product = 10de:fffe architecture=", self.log.output)


class TestUnreadable(DiscoveryTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu("0000:82:00.0", "10de", "1023")
        self.host.add_gpu("0000:83:00.0", "10de", "1023")

    def assertLeftOut(self, why: str = "") -> None:
        self.assertEqual(["0000:83:00.0"], self.addresses())
        message = "Cannot read PCI function 0000:82:00.0, so it is not offered"
        self.assertRegex(self.log.output, f"{message}.*{re.escape(why)}")

    def test_card_without_an_essential_attribute_is_left_out_and_named(self) -> None:
        for name in ("class", "vendor", "device"):
            path = self.attribute("0000:82:00.0", name)
            path.rename(path.with_name("aside"))
            self.assertLeftOut(f"/{name}'")
            path.with_name("aside").rename(path)
        self.assertEqual(["0000:82:00.0", "0000:83:00.0"], self.addresses())

    def test_card_in_a_group_that_is_none_is_left_out_and_named(self) -> None:
        path = self.attribute("0000:82:00.0", "iommu_group")
        path.unlink(missing_ok=True)
        for name in ("-1", "1_0", "none"):
            path.symlink_to(f"../groups/{name}")
            self.assertLeftOut(f"/iommu_group points at '{name}'")
            path.unlink()

    def test_function_that_may_be_virtual_is_left_out_and_named(self) -> None:
        self.attribute("0000:82:00.0", "physfn").touch()  # readlink() answers with EINVAL
        self.assertLeftOut()

    def test_device_that_vanished_after_the_listing_is_no_news(self) -> None:
        # The link that was listed is still there.
        self.host.path("0000:82:00.0").rename(self.root / "unplugged")
        self.assertEqual(["0000:83:00.0"], self.addresses())
        self.assertEqual("", self.log.output)


class TestNoPci(DiscoveryTestCase):
    def test_no_sysfs_is_not_no_gpu(self) -> None:
        self.host.devices.rmdir()
        self.host.devices.touch()
        error = self.assertRaises(exception.DiscoveryFailed, self.discover)
        self.assertEqual("Not a directory", error.reason)
        self.host.devices.unlink()
        self.host.devices.mkdir()
        for depth in (0, 1, 2, 3):  # devices, pci, bus, sysfs itself
            path = (self.host.devices, *self.host.devices.parents)[depth]
            path.rmdir()
            if depth == 1:  # a host without a PCI bus
                self.assertEqual([], self.addresses())
                continue
            error = self.assertRaises(exception.DiscoveryFailed, self.discover)
            self.assertEqual(
                (str(self.host.devices), "it does not exist"), (error.path, error.reason)
            )


ADDRESS = model.PciAddress.parse("0000:88:00.0")
H200 = model.Product("10de", "2335")
MATROX = model.Product("102b", "0536")
Options = tuple[list[str], list[str], list[str]]
WITHOUT_OPTIONS: Options = (["10de", "1002", "8086"], [], [])


def takes(options: Options, product: model.Product = H200, class_code: int = 0x030200) -> bool:
    return selection.Selection.parse(*options).takes(ADDRESS, product, class_code)


class TestTakes(base.BaseTestCase):
    def test_table(self) -> None:
        """Without names the vendor decides, and with any the names alone"""
        for vendors, addresses, product_ids, product, expected in (
            (*WITHOUT_OPTIONS, H200, True),
            (*WITHOUT_OPTIONS, MATROX, False),
            (["102b"], [], [], MATROX, True),
            (["102b"], [], [], H200, False),
            (["10de"], ["0000:89:00.0"], [], H200, False),
            (["10de"], [], ["10de:2330"], H200, False),
            (["10de"], ["0000:89:00.0"], ["10de:2335"], H200, True),
            (["10de"], ["0000:88:00.0"], ["10de:2330"], H200, True),
            (["10de"], [], ["102b:0536"], MATROX, True),
            (["10de"], ["0000:88:00.0"], [], MATROX, True),
            (["10DE "], [], [], H200, True),
            ([], [" 0000:88:00.0"], [], H200, True),
            ([], [], ["10DE:2335 "], H200, True),
        ):
            options = vendors, addresses, product_ids
            self.assertEqual(expected, takes(options, product), options)

    def test_accelerators(self) -> None:
        """AMD's are GPUs, and others what an option names."""
        for key, gpu in (("1002:74a1", True), ("8086:7d1d", False), ("10de:2335", False)):
            product = model.Product(*key.split(":"))
            self.assertEqual(gpu, takes(WITHOUT_OPTIONS, product, 0x120000), key)
            self.assertTrue(takes((["10de"], [], [key]), product, 0x120000))
            self.assertTrue(takes(WITHOUT_OPTIONS, product))


class TestParse(base.BaseTestCase):
    def test_refused_with_option_value_and_remedy(self) -> None:
        for option, value, remedy in (
            ("vendors", "nvidia", "such as 10de for NVIDIA"),
            ("vendors", "0x10de", "without 0x"),
            ("addresses", "88:00.0", "such as 0000:88:00.0"),
            ("product_ids", "2335", "such as 10de:2335"),
            ("product_ids", "10de:2335:1", "such as 10de:2335"),
        ):
            options: dict[str, list[str]] = {"vendors": [], "addresses": [], "product_ids": []}
            options[option] = [value]
            error = self.assertRaises(exception.InvalidOption, selection.Selection.parse, **options)
            self.assertEqual((option, value), (error.option, error.value))
            self.assertIn(remedy, error.remedy)
