# SPDX-License-Identifier: Apache-2.0
"""Nova's own passthrough beside the GPUs, with Nova's own pools"""

from __future__ import annotations

import collections
import json
import types
from typing import Any

import fixtures
from nova import objects
from nova.pci import stats, whitelist
from oslo_utils import uuidutils
from oslotest import base

from nova_gpu.virt.inventory import neighbours, tracker
from tests.fixtures import hosts

FIRST, SECOND = "0000:06:00.0", "0000:0c:00.0"
SPEC = {"vendor_id": "8086", "product_id": "1515"}


def function(physfn: str, number: int) -> objects.PciDevice:
    """A virtual function as Nova has it"""
    return objects.PciDevice(
        address=f"{physfn[:-1]}{number}",
        parent_addr=physfn,
        dev_type="type-VF",
        numa_node=0,
        compute_node_id=1,
        extra_info={},
        **SPEC,
    )


class NeighboursTestCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.host = hosts.build("beside-6", self.useFixture(fixtures.TempDir()).path)
        roots = self.host.roots
        self.gpus = {str(gpu.address)[5:7]: gpu for gpu in self.host.gpus()}
        self.pci: Any = types.SimpleNamespace(claims=collections.defaultdict(list), stats=None)
        self.tracker = tracker.Tracker(lambda: types.SimpleNamespace(pci_tracker=self.pci))
        self.neighbours = neighbours.Neighbours(self.tracker, roots)


class NearTest(NeighboursTestCase):
    def near(self, *buses: str) -> set[str]:
        return set(self.neighbours.near([self.gpus[bus] for bus in buses]))

    def test_whoever_has_it(self) -> None:
        self.pci, known = None, self.pci
        self.assertEqual(set(), self.near("04"), "before Nova knows any")
        self.pci = known
        self.pci.pci_devs = [objects.PciDevice(address="0000:02:00.0", parent_addr=None)]
        self.assertEqual(set(), self.near("04"), "no flavor has a word for a bridge")
        self.neighbours.look_again()
        self.pci.pci_devs = [function(FIRST, 1), function(FIRST, 2)]
        self.assertEqual({"nic"}, self.near("04"))
        self.assertEqual({"nic"}, self.near("0a", "84"))
        self.assertEqual(set(), self.near("84", "85"))
        self.pci.pci_devs = []
        self.assertEqual({"nic"}, self.near("04"))
        self.neighbours.look_again()
        self.assertEqual(set(), self.near("04"))


class PoolsTest(NeighboursTestCase):
    def setUp(self) -> None:
        super().setUp()
        devices = whitelist.Whitelist([json.dumps(SPEC)])
        self.pci.stats = stats.PciDeviceStats(None, dev_filter=devices)
        for physfn in (FIRST, SECOND):
            for number in (1, 2):
                self.pci.stats.add_device(function(physfn, number))

    def drawn(self, *free: str) -> list[str]:
        """The cards whose functions Nova draws, one after the other, while those GPUs are free"""
        request = objects.InstancePCIRequest(
            count=1, spec=[SPEC], request_id=uuidutils.generate_uuid()
        )
        addresses = []
        for _ in range(3):
            self.neighbours.sort_pools(self.gpus[bus] for bus in free)
            (device,) = self.pci.stats.consume_requests([request])
            addresses.append(device.parent_addr)
        return addresses

    def test_how_many_one_that_is_free_has_beside_it(self) -> None:
        def found(*free: str) -> tuple[int, ...]:
            return self.neighbours.beside_free([self.gpus[bus] for bus in free])

        self.assertEqual((2, 3, 0, 0), found("04", "05", "0a", "84"))
        self.assertEqual((0, 0, 0, 0), found("84", "85"))
        # Those beside free GPUs are drawn first; one function of the first card is left.
        self.assertEqual([SECOND, SECOND, FIRST], self.drawn("0a"))
        self.assertEqual((1, 3, 0, 0), found("04", "0a", "0b"))
        self.pci = None
        self.assertEqual((0, 0, 0, 0), found("04"))
