# SPDX-License-Identifier: Apache-2.0
"""Nova's own passthrough beside the GPUs, with Nova's own pools"""

from __future__ import annotations

import collections
import json
import types
from typing import Any

import fixtures
from nova import exception as nova_exception
from nova import objects
from nova.pci import stats, whitelist
from oslo_utils import uuidutils
from oslotest import base

from nova_gpu.core.flavor.placement_policy import Near
from nova_gpu.core.model import GPU
from nova_gpu.core.topology.nearness import Neighbour
from nova_gpu.virt.inventory import neighbours, tracker
from tests.fixtures import hosts

FIRST, SECOND = "0000:06:00.0", "0000:0c:00.0"
SPEC = {"vendor_id": "8086", "product_id": "1515"}
NEAR = {"gpus": "1", "gpu:near": "nic"}


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
        self.gpus = {str(each.address)[5:7]: each for each in self.host.gpus()}
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
        found = []
        for _ in range(3):
            self.neighbours.sort_pools(self.gpus[bus] for bus in free)
            (device,) = self.pci.stats.consume_requests([request])
            found.append(device.parent_addr)
        return found

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


class ClaimantTest(NeighboursTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.instances: dict[str, objects.Instance] = {}
        self.useFixture(fixtures.MockPatchObject(objects.Instance, "get_by_uuid", self._get))
        self.asked: list[str] = []

    def _get(self, context: Any, uuid: str, expected_attrs: list[str]) -> objects.Instance:
        self.asked.append(uuid)
        if uuid not in self.instances:
            raise nova_exception.InstanceNotFound(instance_id=uuid)
        return self.instances[uuid]

    def claim(self, *addresses: str, **specs: str) -> objects.Instance:
        """What Nova has of one that claims these"""
        instance = objects.Instance(
            uuid=uuidutils.generate_uuid(),
            flavor=objects.Flavor(extra_specs=specs or NEAR),
            new_flavor=None,
        )
        self.instances[instance.uuid] = instance
        claimed = [objects.PciDevice(address=each) for each in addresses]
        self.pci.claims[instance.uuid] = claimed
        instance.pci_devices = objects.PciDeviceList(objects=claimed)
        return instance

    def where(self) -> list[Neighbour]:
        found = self.neighbours.claimant()
        return list(found.neighbours) if found else []

    def test_the_last_one(self) -> None:
        """What a claim that failed has left is older."""
        self.claim(f"{SECOND[:-1]}1")
        instance = self.claim(f"{FIRST[:-1]}1")
        (nic,) = self.where()
        gpu: GPU = self.gpus["04"]
        self.assertEqual((Near.NIC, gpu.pcie_switch), (nic.kind, nic.pcie_switch))
        self.assertEqual((0, gpu.pci_root), (nic.numa_node, nic.pci_root))
        found = self.neighbours.claimant()
        self.assertIs(Near.NIC, found and found.arrangement.near)
        # The flavor that it is resized to
        instance.new_flavor = objects.Flavor(extra_specs={"gpus": "1", "gpu:near": "nvme"})
        found = self.neighbours.claimant()
        self.assertIs(Near.NVME, found and found.arrangement.near)
        # Its node is read once between two looks.
        (self.host.path(f"{FIRST[:-1]}1") / "numa_node").write_text("1\n")
        self.assertEqual([nic], self.where())
        self.neighbours.look_again()
        self.assertEqual([1], [each.numa_node for each in self.where()])
        # One that is started again has its functions all the time, and claims its GPUs alone.
        self.asked.clear()
        self.claim(f"{SECOND[:-1]}1")
        self.tracker.handing_out = instance
        self.assertEqual([gpu.pcie_switch], [each.pcie_switch for each in self.where()])
        self.assertEqual([], self.asked)

    def test_nobody_is_asked_of_others(self) -> None:
        self.assertIsNone(self.neighbours.claimant())
        self.claim("0000:01:00.0")  # a bridge
        self.claim("0000:ff:00.0")  # not there
        self.assertIsNone(self.neighbours.claimant())
        self.pci = None
        self.assertIsNone(self.neighbours.claimant())
        self.assertEqual([], self.asked)

    def test_what_cannot_be_told(self) -> None:
        self.claim(f"{FIRST[:-1]}1", **{"pci_passthrough:alias": "nic:1"})
        self.assertIsNone(self.neighbours.claimant())
        instance = self.claim(f"{FIRST[:-1]}1", **{**NEAR, "gpu:near": "moon"})
        self.assertIsNone(self.neighbours.claimant())
        self.assertIn("gpu:near", self.log.output)
        del self.instances[instance.uuid]
        self.assertIsNone(self.neighbours.claimant())
        self.assertIn("could not be found", self.log.output)
