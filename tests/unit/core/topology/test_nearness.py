# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core.flavor.placement_policy import Near
from nova_gpu.core.model import PciAddress
from nova_gpu.core.topology import nearness
from nova_gpu.core.topology.nearness import Neighbour
from tests.fixtures import cards

NIC, NVME = 0x020000, 0x010802
SWITCH, OTHER = PciAddress(0, 1, 0, 0), PciAddress(0, 2, 0, 0)
GPU = cards.placed("0000:04:00.0", 0, pci_root="pci0000:00", pcie_switch=SWITCH)


class KindTest(unittest.TestCase):
    def test_classes(self) -> None:
        """As in the kernel's include/linux/pci_ids.h"""
        for class_code, expected in (
            (NIC, Near.NIC),
            (0x020700, Near.NIC),  # InfiniBand
            (NVME, Near.NVME),
            (0x010601, Near.ANY),  # SATA
            (0x030200, Near.ANY),
        ):
            self.assertIs(expected, Neighbour(class_code).kind)


class DistanceTest(unittest.TestCase):
    def test_to_one(self) -> None:
        for expected, neighbour in enumerate(
            (
                Neighbour(NIC, 1, "pci0000:80", SWITCH),
                Neighbour(NIC, 1, "pci0000:00", OTHER),
                Neighbour(NIC, 0, "pci0000:80", OTHER),
                Neighbour(NIC, 1, "pci0000:80", OTHER),
            )
        ):
            self.assertEqual(expected, nearness.distance(GPU, [neighbour]))

    def test_what_is_not_known_is_far(self) -> None:
        nowhere = cards.placed("0000:04:00.0", None)
        for gpu, found in ((GPU, [Neighbour(NIC)]), (nowhere, [Neighbour(NIC)]), (GPU, [])):
            self.assertEqual(nearness.FAR, nearness.distance(gpu, found))
