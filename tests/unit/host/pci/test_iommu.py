# SPDX-License-Identifier: Apache-2.0
import shutil

from nova_gpu.core import model
from nova_gpu.host.pci import iommu
from tests.fixtures import hosts, pci
from tests.fixtures.bases.host import HostTestCase

CARD, AUDIO = "0000:81:00.0", "0000:81:00.1"


class TestVfio(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host.add_gpu(CARD, "10de", "1e04", companions=(pci.AUDIO,))
        self.functions = [model.PciAddress.parse(each) for each in (CARD, AUDIO)]

    def test_driver(self) -> None:
        drivers = [iommu.driver(each, self.host.roots) for each in self.functions]
        self.assertEqual(["nvidia", None], drivers)

    def test_prepared_is_every_function(self) -> None:
        self.assertFalse(iommu.is_prepared(self.functions, self.host.roots))
        self.host.bind(CARD, "vfio-pci")
        self.assertFalse(iommu.is_prepared(self.functions, self.host.roots))
        self.host.bind(AUDIO, "vfio-pci")
        self.assertTrue(iommu.is_prepared(self.functions, self.host.roots))

    def test_drivers_of_vfio(self) -> None:
        """drivers/vfio/pci of the kernel has vfio-pci, xe-vfio-pci, nvgrace-gpu-vfio-pci ..."""
        for driver in ("vfio-pci", "mlx5_vfio_pci", "nvgrace-gpu-vfio-pci", "xe-vfio-pci"):
            self.host.bind(CARD, driver)
            self.assertTrue(self.is_with_vfio(), driver)
        for driver in (None, "nvidia", "pci-stub"):
            self.host.bind(CARD, driver)
            self.assertFalse(self.is_with_vfio(), driver)

    def test_by_what_it_does_and_not_by_its_name(self) -> None:
        self.host.register_with_vfio(CARD)  # as NVIDIA's driver does with a virtual function
        self.assertTrue(self.is_with_vfio())
        self.host.bind(CARD, "my-vfio-pci")
        shutil.rmtree(self.host.path(CARD) / "vfio-dev")
        self.assertFalse(self.is_with_vfio())

    def test_before_linux_6_1(self) -> None:
        self.host.bind(CARD, "vfio-pci")
        shutil.rmtree(self.host.path(CARD) / "vfio-dev")
        self.assertTrue(self.is_with_vfio())

    def is_with_vfio(self) -> bool:
        return iommu.is_with_vfio(self.functions[0], self.host.roots)

    def test_group_members(self) -> None:
        members = iommu.group_members(self.functions[1], self.host.roots)
        self.assertEqual((CARD, AUDIO), members)

    def test_no_group(self) -> None:
        host = hosts.Host(self.root / "plain", iommu=False)
        host.add_gpu(CARD, "10de", "1e04")
        self.assertEqual((), iommu.group_members(self.functions[0], host.roots))
