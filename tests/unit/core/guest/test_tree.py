# SPDX-License-Identifier: Apache-2.0
"""The guest's tree against the host's: machines drawn at random, more with TREE_MACHINES."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import unittest
from collections.abc import Sequence

from nova_gpu.core import names
from nova_gpu.core.guest import devices, tree
from nova_gpu.core.guest.tree import Controller, Model, Tree
from nova_gpu.core.model import GPU, Link, LinkType, Product
from nova_gpu.core.vgpu.vgpu import VGPUType
from tests.fixtures import cards
from tests.fixtures.guest_trees import ALONE, ELSEWHERE, GEN4, GEN5, PAIR, placed, told

MACHINES = int(os.environ.get("TREE_MACHINES", "300"))


def machine(drawn: random.Random) -> list[GPU]:
    """Roots lie on one node, switches below one root, and cards behind a port or a switch."""
    gpus, bus = [], iter(range(1, 255))
    nodes = drawn.choice([[None], [0], [0, 1], [0, 1, 2, 3]])
    for root in range(drawn.randint(1, 8)):
        node = drawn.choice(nodes)
        name = None if drawn.random() < 0.05 else f"pci0000:{root:02x}"
        for _ in range(drawn.randint(0, 3)):
            behind = 1
            switch = None
            if name and drawn.random() < 0.5:
                behind, switch = drawn.randint(1, 4), f"0000:{next(bus):02x}:00.0"
            for _ in range(behind):
                gpus.append(placed(f"0000:{next(bus):02x}:00.0", node, name, switch))
    return gpus


@dataclasses.dataclass(frozen=True)
class Seen:
    """Where the guest sees a card, by the controllers above it"""

    node: int | None
    root: int
    switch: int | None


def place(guest_tree: Tree, card: GPU) -> Seen:
    by_index = {controller.index: controller for controller in guest_tree.controllers}
    above = [by_index[guest_tree.behind[card.address]]]
    while above[-1].above:
        above.append(by_index[above[-1].above])
    models = [controller.model for controller in reversed(above)]
    switched = [Model.EXPANDER, Model.ROOT_PORT, Model.UPSTREAM, Model.DOWNSTREAM]
    if models not in (switched, switched[:2]):
        raise AssertionError(models)
    return Seen(above[-1].node, above[-1].index, above[1].index if len(above) == 4 else None)


class PropertyTest(unittest.TestCase):
    def assertAlike(self, held: Sequence[GPU], guest_tree: Tree) -> None:
        for one, other in itertools.combinations(held, 2):
            here, there = place(guest_tree, one), place(guest_tree, other)
            same_root = one.pci_root is not None and one.pci_root == other.pci_root
            same_switch = one.pcie_switch is not None and one.pcie_switch == other.pcie_switch
            self.assertEqual(one.numa_node == other.numa_node, here.node == there.node)
            self.assertEqual(same_root, here.root == there.root)
            self.assertEqual(same_switch, here.switch == there.switch is not None)

    def assertSound(self, guest_tree: Tree) -> None:
        """libvirt and firmware take it: indexes without a gap, each slot once, bus numbers apart"""
        indexes = [controller.index for controller in guest_tree.controllers]
        self.assertEqual(list(range(1, len(indexes) + 1)), indexes)
        self.assertTrue(
            all(controller.above < controller.index for controller in guest_tree.controllers)
        )
        below = [
            controller
            for controller in guest_tree.controllers
            if controller.model is not Model.EXPANDER
        ]
        slots = [(controller.above, controller.slot) for controller in below]
        self.assertEqual(len(slots), len(set(slots)))
        self.assertEqual(len(guest_tree.behind), len(set(guest_tree.behind.values())))
        expanders = [
            controller
            for controller in guest_tree.controllers
            if controller.model is Model.EXPANDER
        ]
        for expander, following in itertools.pairwise([*expanders, None]):
            assert expander is not None
            end = 256 if following is None else following.bus_number
            assert expander.bus_number is not None and end is not None
            self.assertGreaterEqual(
                end - expander.bus_number, 1 + self._buses(guest_tree, expander)
            )
            self.assertTrue(64 <= expander.bus_number <= 254)

    def assertPlacesApart(self, guest_tree: Tree) -> None:
        """No two cards, and no card and a switch, are at one address: each bridge has its bus."""
        places = guest_tree.places()
        taken = [place.address for place in places.values()]
        taken += {place.switch for place in places.values() if place.switch}
        self.assertEqual(guest_tree.behind.keys(), places.keys())
        self.assertEqual(len(taken), len(set(taken)))
        self.assertLessEqual(max((address.bus for address in taken), default=0), 255)

    def _buses(self, guest_tree: Tree, expander: Controller) -> int:
        """Each bridge below it has a bus behind it."""
        under = {expander.index}
        for controller in guest_tree.controllers:
            if controller.above in under:
                under.add(controller.index)
        return len(under) - 1

    def test_random_machines(self) -> None:
        for seed in range(MACHINES):
            drawn = random.Random(seed)
            there = machine(drawn)
            held = drawn.sample(there, drawn.randint(1, len(there))) if there else []
            with self.subTest(seed=seed):
                guest_tree = tree.of(held)
                assert guest_tree is not None
                self.assertEqual({card.address for card in held}, guest_tree.behind.keys())
                self.assertAlike(held, guest_tree)
                self.assertPlacesApart(guest_tree)
                self.assertSound(guest_tree)


class TreeTest(unittest.TestCase):
    def test_what_is_not_known(self) -> None:
        """Two cards of which nothing is known are on no root together."""
        guest_tree = tree.of(
            [placed("0000:01:00.0", None, None), placed("0000:02:00.0", None, None)]
        )
        assert guest_tree is not None
        self.assertEqual(
            [None, None, None, None], [controller.node for controller in guest_tree.controllers]
        )
        self.assertEqual([2, 4], list(guest_tree.behind.values()))
        self.assertEqual((), guest_tree.nodes)

    def test_too_many(self) -> None:
        roots = [placed(f"0000:{bus:02x}:00.0", 0, f"pci0000:{bus:02x}") for bus in range(1, 18)]
        self.assertIsNone(tree.of(roots))
        self.assertIsNotNone(tree.of(roots[:16]))
        ports = [placed(f"0000:{bus:02x}:00.0", 0, "pci0000:00") for bus in range(1, 34)]
        self.assertIsNone(tree.of(ports))
        self.assertIsNotNone(tree.of(ports[:32]))
        many = [
            placed(f"0000:{bus:02x}:00.0", 0, f"pci0000:{bus % 8:02x}") for bus in range(1, 193)
        ]
        self.assertIsNone(tree.of(many))

    def test_flat(self) -> None:
        self.assertEqual([1, 2, 3], list(tree.flat([*PAIR, ALONE]).values()))


class SaysMoreTest(unittest.TestCase):
    def test_table(self) -> None:
        for held, expected in (
            ([], False),
            ([PAIR[0]], False),
            ([PAIR[0], ALONE], False),
            (PAIR, True),
            ([ALONE, ELSEWHERE], True),
        ):
            with self.subTest(held=held):
                self.assertEqual(expected, tree.says_more(held))


class CellsTest(unittest.TestCase):
    def test_what_is_left_over(self) -> None:
        cells = tree.cells((0, 1, 2), 4, 1025)
        self.assertEqual([range(2), range(2, 3), range(3, 4)], [cell.cpus for cell in cells])
        self.assertEqual([342, 342, 341], [cell.memory_mib for cell in cells])

    def test_fewer_processors_than_nodes(self) -> None:
        """The first one has it: no guest boots from a node without."""
        self.assertEqual([1, 0], [len(cell.cpus) for cell in tree.cells((0, 1), 1, 512)])


class ListTest(unittest.TestCase):
    def test_all_of_a_card(self) -> None:
        product = Product("10de", "2330", "H100 SXM5 80GB", memory_mib=81559)
        one, other = (dataclasses.replace(card, product=product) for card in PAIR)
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
        guest_devices = told(PAIR[1], ELSEWHERE, PAIR[0])
        addresses = [device["address"] for device in guest_devices]
        self.assertEqual(sorted(map(str, addresses)), addresses)
        self.assertEqual([0, 0, 1], [device["numa_node"] for device in guest_devices])

    def test_parts(self) -> None:
        device = devices.of_part(2, VGPUType("nvidia-63", "GRID P4-1Q", 1024))
        self.assertEqual((2, "GRID P4-1Q", 1024), tuple(device.values())[:3])
        self.assertEqual("1g.18gb", devices.of_part(0, VGPUType("1g.18gb"))["model"])


class NcclTest(unittest.TestCase):
    """Compared as text: NCCL has its own parser (src/graph/xml.cc), which takes no declaration,
    no tab and no attribute without quotes."""

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
        guest_tree = tree.of(PAIR)
        assert guest_tree is not None
        places = {
            card: dataclasses.replace(place, node=None)
            for card, place in guest_tree.places().items()
        }
        xml = devices.nccl_topology(devices.of_cards(PAIR, places, {}))
        assert xml is not None
        self.assertIn('<cpu numaid="-1">', xml)
        self.assertIn('<pci busid="0000:fc:00.0" class="0x060400">', xml)
        self.assertNotIn("link_", xml)

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
        guest_devices = told(*held)
        metadata = devices.to_metadata(guest_devices)
        self.assertLess(10, len(metadata))
        self.assertLessEqual(max(map(len, metadata.values())), 255)
        others = {"image_os_distro": "debian", "nova_gpu_released": "true"}
        self.assertEqual(
            guest_devices, devices.of_metadata({**others, **dict(reversed(metadata.items()))})
        )

    def test_what_nobody_wrote(self) -> None:
        self.assertEqual({}, devices.to_metadata([]))
        for text in ("", "[{", "7", "null"):
            self.assertEqual([], devices.of_metadata({f"{names.GUEST_DEVICES}0": text}))
