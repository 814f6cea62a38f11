# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib

import fixtures
from oslotest import base

from nova_gpu.core.model import PciAddress
from nova_gpu.host import virtual_functions
from tests.fixtures import hosts

CARD, FUNCTION = "0000:3b:00.0", "0000:3b:00.1"


class TestObstacle(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.Host(pathlib.Path(self.useFixture(fixtures.TempDir()).path))
        self.host.add_gpu(CARD, "8086", "56c0", totalvfs=31, driver="i915")
        self.host.set_autoprobe(CARD, enabled=False)

    def add(self, **attributes: int) -> None:
        self.host.add_vf(CARD, FUNCTION, **attributes)

    def obstacle(self) -> str:
        found = virtual_functions.obstacle(PciAddress.parse(FUNCTION), self.host.roots)
        return found or ""

    def test_none(self) -> None:
        self.add()
        self.assertEqual("", self.obstacle())

    def test_with_vfio_whatever_the_host_would_take(self) -> None:
        self.add()
        self.host.set_autoprobe(CARD, enabled=True)
        for driver in ("vfio-pci", "xe_vfio_pci"):
            self.host.bind(FUNCTION, driver)
            self.assertEqual("", self.obstacle())

    def test_that_the_host_drives(self) -> None:
        self.add()
        self.host.bind(FUNCTION, "i915")
        self.assertIn(f"{FUNCTION} is with i915, a driver of the host; write 0 to", self.obstacle())

    def test_that_the_host_would_drive_again(self) -> None:
        self.add()
        self.host.set_autoprobe(CARD, enabled=True)
        said = f"{CARD}/sriov_drivers_autoprobe before sriov_numvfs"
        self.assertIn(said, self.obstacle())
        (self.host.path(CARD) / "sriov_drivers_autoprobe").unlink()
        self.assertIn(said, self.obstacle())

    def test_beside_a_neighbour(self) -> None:
        self.add(iommu_group=77)
        self.host.add_vf(CARD, "0000:3b:00.2", iommu_group=77)
        self.assertIn(f"the IOMMU group of its virtual function {FUNCTION} has", self.obstacle())
        self.assertIn("0000:3b:00.2 (no driver)", self.obstacle())

    def test_without_iommu(self) -> None:
        self.host.iommu = False
        self.add()
        self.assertIn(f"the IOMMU does not cover {FUNCTION}; turn on VT-d", self.obstacle())

    def test_gone(self) -> None:
        self.assertRaises(OSError, self.obstacle)
