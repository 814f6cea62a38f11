# SPDX-License-Identifier: Apache-2.0
"""What a guest is told. The file for NCCL is compared as text: NCCL has a parser of its own
(src/graph/xml.cc), which takes no declaration, no tab and no attribute without quotes."""

from __future__ import annotations

import dataclasses
import unittest

from nova_gpu.core import names
from nova_gpu.core.guest import devices, tree
from nova_gpu.core.model import Link, LinkType, Product
from nova_gpu.core.vgpu.vgpu import VGPUType
from tests.fixtures import cards
from tests.fixtures.guest_trees import ALONE, ELSEWHERE, GEN4, GEN5, PAIR, told


class ListTest(unittest.TestCase):
    def test_all_of_a_card(self) -> None:
        product = Product("10de", "2330", "H100 SXM5 80GB", memory_mib=81559)
        one, other = (dataclasses.replace(each, product=product) for each in PAIR)
        joined = dataclasses.replace(one, links=(Link(other.address, LinkType.NVLINK, 18),))
        self.assertEqual(
            {
                "index": 0,
                "model": "H100 SXM5 80GB",
                "memory_mib": 81559,
                "numa_node": 0,
                "address": "0000:fe:00.0",
                "pci_class": "0x030200",
                "pcie": GEN5,
                "switch": {"address": "0000:fc:00.0", "pcie": GEN4},
                "links": [{"index": 1, "type": "nvlink", "width": 18}],
            },
            told(joined, other)[0],
        )

    def test_index_goes_by_the_guests_addresses(self) -> None:
        """nvidia-smi's does. Here the tree has the pair's root first, as that card came first."""
        found = told(PAIR[1], ELSEWHERE, PAIR[0])
        addresses = [each["address"] for each in found]
        self.assertEqual(sorted(map(str, addresses)), addresses)
        self.assertEqual([0, 0, 1], [each["numa_node"] for each in found])

    def test_parts(self) -> None:
        found = devices.of_part(2, VGPUType("nvidia-63", "GRID P4-1Q", 1024))
        self.assertEqual((2, "GRID P4-1Q", 1024), tuple(found.values())[:3])
        self.assertEqual("1g.18gb", devices.of_part(0, VGPUType("1g.18gb"))["model"])


class NcclTest(unittest.TestCase):
    def test_two_nodes_and_a_switch(self) -> None:
        self.assertEqual(
            """\
<system version="1">
  <cpu numaid="0">
    <pci busid="0000:fa:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="8">
      <pci busid="0000:fc:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
      <pci busid="0000:fd:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
    </pci>
  </cpu>
  <cpu numaid="1">
    <pci busid="0000:ff:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16"/>
  </cpu>
</system>
""",
            devices.nccl_topology(told(*PAIR, ELSEWHERE)),
        )

    def test_what_is_not_known_is_left_to_nccl(self) -> None:
        found = tree.of(PAIR)
        assert found is not None
        places = {
            card: dataclasses.replace(place, node=None) for card, place in found.places().items()
        }
        said = devices.nccl_topology(devices.of_cards(PAIR, places, {}))
        assert said is not None
        self.assertIn('<cpu numaid="-1">', said)
        self.assertIn('<pci busid="0000:fc:00.0" class="0x060400">', said)
        self.assertNotIn("link_", said)

    def test_nothing_to_say(self) -> None:
        self.assertIsNone(devices.nccl_topology(told(ALONE)))
        self.assertIsNone(devices.nccl_topology(devices.of_cards(PAIR, {}, {})))


class MetadataTest(unittest.TestCase):
    def test_there_and_back(self) -> None:
        """Of sixteen cards it takes more than ten pieces, which are in order."""
        held = [
            cards.placed(f"0000:{bus:02x}:00.0", bus % 2, pci_root=f"pci0000:{bus:02x}")
            for bus in range(1, 17)
        ]
        found = told(*held)
        kept = devices.to_metadata(found)
        self.assertLess(10, len(kept))
        self.assertLessEqual(max(map(len, kept.values())), 255)
        others = {"image_os_distro": "debian", "nova_gpu_released": "true"}
        self.assertEqual(found, devices.of_metadata({**others, **dict(reversed(kept.items()))}))

    def test_what_nobody_wrote(self) -> None:
        self.assertEqual({}, devices.to_metadata([]))
        for text in ("", "[{", "7", "null"):
            self.assertEqual([], devices.of_metadata({f"{names.GUEST_DEVICES}0": text}))
