# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from unittest import mock

import fixtures

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
    def test_fermi_8(self) -> None:
        self.machine("fermi-8")
        gpus = self.discover()
        self.assertEqual(
            [f"0000:{bus}:00.0" for bus in ("04", "05", "08", "09", "84", "85", "88", "89")],
            [str(gpu.address) for gpu in gpus],
        )
        self.assertEqual([0] * 4 + [1] * 4, [gpu.numa_node for gpu in gpus])
        self.assertEqual(
            {model.Product("10de", "1091", "Tesla M2090", "fermi")}, {gpu.product for gpu in gpus}
        )
        self.assertEqual({"nvidia"}, {gpu.driver for gpu in gpus})
        self.assertEqual(8, len({gpu.iommu_group for gpu in gpus}))
        self.assertEqual("", self.log.output)

    def test_mixed(self) -> None:
        self.machine("mixed")
        gpus = {str(gpu.address): gpu for gpu in self.discover()}
        self.assertEqual(
            ["0000:03:00.0", "0000:43:00.0", "0000:81:00.0", "0000:c1:00.0", "10000:01:00.0"],
            list(gpus),
        )
        self.assertEqual("cdna3", gpus["0000:03:00.0"].product.architecture)
        self.assertEqual(0x120000, gpus["0000:03:00.0"].class_code)
        self.assertEqual("xe", gpus["0000:43:00.0"].driver)
        self.assertEqual(
            ["0000:81:00.1", "0000:81:00.2", "0000:81:00.3"],
            [str(companion) for companion in gpus["0000:81:00.0"].companions],
        )
        self.assertEqual("vfio-pci", gpus["0000:c1:00.0"].driver)
        self.assertEqual(0x10000, gpus["10000:01:00.0"].address.domain)
        self.assertIsNone(gpus["10000:01:00.0"].numa_node)

    def test_switches_of_an_hgx_board_are_no_cards(self) -> None:
        self.machine("h200-8")
        self.assertEqual({"10de:2335"}, {gpu.product.key for gpu in self.discover()})
        self.assertEqual(8, len(self.discover()))

    def test_a_bmc_is_no_card(self) -> None:
        self.machine("displays")
        self.assertEqual(["0000:21:00.0", "0000:22:00.0"], self.addresses())

    def test_host_without_gpus(self) -> None:
        self.machine("cpu-only")
        self.assertEqual([], self.addresses())


class TestSelected(DiscoveryTestCase):
    def test_boot_display_and_bmc_if_named(self) -> None:
        self.machine("displays")
        self.assertEqual(["0000:21:00.0"], self.addresses(named(product_ids=("10de:1e04",))))
        self.assertEqual(
            ["0000:02:00.0", "0000:21:00.0"],
            self.addresses(named(("0000:21:00.0",), ("1a03:2000",))),
        )

    def test_function_that_is_no_gpu_is_none_even_if_named(self) -> None:
        self.machine("fermi-8")
        self.assertEqual([], self.addresses(named(("0000:01:00.0",))))
        self.assertIn("names 0000:01:00.0, but this host has no GPU there", self.log.output)

    def test_missing_named_card_is_said_once(self) -> None:
        for _ in range(2):
            self.assertEqual([], self.addresses(named(("0000:88:00.0",))))
        self.assertEqual(1, self.log.output.count("0000:88:00.0"))


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
        (gpu,) = self.discover()
        self.assertEqual("0000:81:00.0", str(gpu.address))
        self.assertEqual(["0000:81:00.1"], [str(companion) for companion in gpu.companions])

    def test_behind_a_bridge(self) -> None:
        self.host.add_gpu(
            "0000:82:00.0", "10de", "1023", parent=self.host.add_bridge("0000:80:01.0")
        )
        self.assertEqual(["0000:82:00.0"], self.addresses())

    def test_sorted_by_number(self) -> None:
        for domain in ("10000", "ffff", "0000"):
            self.host.add_gpu(f"{domain}:01:00.0", "10de", "1023")
        self.assertEqual(["0000:01:00.0", "ffff:01:00.0", "10000:01:00.0"], self.addresses())

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

    def test_nvml_before_the_table(self) -> None:
        (gpu,) = self.discover()
        self.assertEqual(model.Product("10de", "2335", "H200", "nvml", 143771, (9, 0)), gpu.product)
        self.assertEqual("GPU-1", gpu.uuid)
        self.assertEqual(18, gpu.links[0].width)

    def test_operator_before_nvml_for_what_he_says(self) -> None:
        (gpu,) = self.discover(overrides=products.parse_overrides(["10de:2335 architecture=own"]))
        self.assertEqual(model.Product("10de", "2335", "H200", "own", 143771, (9, 0)), gpu.product)

    def test_one_kind_of_board_before_its_product(self) -> None:
        lines = ["10de:2335:10de:16c1 name=Own", "10de:2335 architecture=own name=Other"]
        (gpu,) = self.discover(overrides=products.parse_overrides(lines))
        self.assertEqual("10de:16c1", gpu.subsystem)
        self.assertEqual(model.Product("10de", "2335", "Own", "own", 143771, (9, 0)), gpu.product)
        lines[0] = "10de:2335:10de:16c2 name=Own"
        (gpu,) = self.discover(overrides=products.parse_overrides(lines))
        self.assertEqual("Other", gpu.product.name)

    def test_the_table_without_nvml(self) -> None:
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

    def test_amd_cards_have_xgmi_links(self) -> None:
        for address in ("0000:03:00.0", "0000:04:00.0"):
            self.host.add_gpu(address, "1002", "74a1", class_code=0x120000)
        self.host.add_xgmi(["0000:03:00.0", "0000:04:00.0"])
        gpus = {str(gpu.address): gpu for gpu in self.discover()}
        peer = gpus["0000:04:00.0"].address
        self.assertEqual((model.Link(peer, model.LinkType.XGMI),), gpus["0000:03:00.0"].links)


class TestNvmlIsAsked(DiscoveryTestCase):
    def test_once_for_cards_of_the_nvidia_driver(self) -> None:
        for address in ("0000:82:00.0", "0000:83:00.0"):
            self.host.add_gpu(address, "10de", "2335")
        self.discover()
        self.nvml.assert_called_once()

    def test_not_for_other_vendors_and_drivers(self) -> None:
        for vendor_id, driver in (("10de", "vfio-pci"), ("10de", None), ("1002", "amdgpu")):
            self.host.add_gpu("0000:82:00.0", vendor_id, "2335", driver=driver)
            self.discover()
            self.assertEqual(0, self.nvml.call_count, driver)
            self.host.remove("0000:82:00.0")

    def test_not_for_a_card_that_is_not_selected(self) -> None:
        self.host.add_gpu("0000:82:00.0", "10de", "1e04")
        self.discover(named(("0000:81:00.0",)))
        self.nvml.assert_not_called()


class TestUnreadable(DiscoveryTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu("0000:82:00.0", "10de", "1023")
        self.host.add_gpu("0000:83:00.0", "10de", "1023")

    def assertLeftOut(self, why: str = "") -> None:
        self.assertEqual(["0000:83:00.0"], self.addresses())
        told = "Cannot read PCI function 0000:82:00.0, so it is not offered"
        self.assertRegex(self.log.output, f"{told}.*{re.escape(why)}")

    def test_card_without_an_essential_attribute_is_left_out_and_named(self) -> None:
        for name in ("class", "vendor", "device"):
            path = self.attribute("0000:82:00.0", name)
            path.rename(path.with_name("aside"))
            self.assertLeftOut(f"/{name}'")
            path.with_name("aside").rename(path)
        self.assertEqual(["0000:82:00.0", "0000:83:00.0"], self.addresses())

    def test_card_whose_attribute_makes_no_sense_is_left_out_and_named(self) -> None:
        self.attribute("0000:82:00.0", "vendor").write_text("?\n")
        self.assertLeftOut("/vendor has '?'")

    def test_card_in_a_group_that_is_none_is_left_out_and_named(self) -> None:
        path = self.attribute("0000:82:00.0", "iommu_group")
        path.unlink(missing_ok=True)
        for name in ("-1", "1_0", "none"):
            path.symlink_to(f"../groups/{name}")
            self.assertLeftOut(f"/iommu_group points at '{name}'")
            path.unlink()

    def test_attribute_that_answers_with_an_error_number(self) -> None:
        # A folder opens and answers read() with EISDIR, as a dying card's attribute does with EIO.
        path = self.attribute("0000:82:00.0", "device")
        path.unlink()
        path.mkdir()
        self.assertLeftOut("0000:82:00.0/device'")

    def test_function_that_may_be_virtual_is_left_out_and_named(self) -> None:
        self.attribute("0000:82:00.0", "physfn").touch()  # readlink() answers with EINVAL
        self.assertLeftOut()

    def test_device_that_vanished_after_the_listing_is_no_news(self) -> None:
        # Its folder is gone, the link that was listed is still there.
        device = self.host.path("0000:82:00.0")
        device.rename(self.root / "unplugged")
        self.assertEqual(["0000:83:00.0"], self.addresses())
        self.assertEqual("", self.log.output)

    def test_removed_card(self) -> None:
        self.host.remove("0000:82:00.0")
        self.assertEqual(["0000:83:00.0"], self.addresses())

    def test_name_that_is_no_address_is_left_out_and_named(self) -> None:
        self.host.add_device("vmd0:0.0", "10de", "1023", class_code=pci.CLASS_3D)
        self.assertEqual(["0000:82:00.0", "0000:83:00.0"], self.addresses())
        self.assertIn("Cannot read PCI function vmd0:0.0, so it is not offered", self.log.output)


class TestNoPci(DiscoveryTestCase):
    def test_host_without_a_pci_bus_has_no_gpu(self) -> None:
        self.host.devices.rmdir()
        self.host.devices.parent.rmdir()
        self.assertEqual([], self.addresses())

    def test_no_sysfs_is_not_no_gpu(self) -> None:
        for depth in (0, 1, 2, 3):  # devices, pci, bus, sysfs itself
            path = (self.host.devices, *self.host.devices.parents)[depth]
            path.rmdir()
            if depth == 1:
                continue  # a host without a PCI bus
            error = self.assertRaises(exception.DiscoveryFailed, self.discover)
            self.assertEqual(
                (str(self.host.devices), "it does not exist"), (error.path, error.reason)
            )

    def test_devices_folder_that_cannot_be_listed(self) -> None:
        self.host.devices.rmdir()
        self.host.devices.touch()
        error = self.assertRaises(exception.DiscoveryFailed, self.discover)
        self.assertEqual("Not a directory", error.reason)
