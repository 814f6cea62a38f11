# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from nova import exception as nova_exception
from oslo_config import fixture as config_fixture
from oslo_utils import uuidutils

from nova_gpu.conf import CONF
from nova_gpu.core import device, exception
from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.virt.inventory.assignment import InstanceDevices
from tests.fixtures.bases import compute
from tests.fixtures.bases.compute import DIVIDED, ONE, TWO
from tests.fixtures.compute import resources

PART, LATER = (f"{DIVIDED}/nvidia-63/{number}" for number in (1, 2))
GONE = "0000:d8:00.0"
NAMED, OWN = (Slot.parse(f"{DIVIDED}/nvidia-63/{number}") for number in (0, 1))
OTHER = uuidutils.generate_uuid()


class AssignedTestCase(compute.ComputeTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.whole = self.provider
        self.parts = self.compute.provider("1bb3", "nvidia-63")

    @property
    def assigned(self) -> InstanceDevices:
        return self.compute.gpus.assigned

    def held(self, *had: tuple[str, str]) -> list[str]:
        assignments = self.assigned.held(resources(*had))
        return [str(assignment.device) for own in assignments.values() for assignment in own]


class AssignedTest(AssignedTestCase):
    def test_whole_cards_first(self) -> None:
        """Of this host: after a move an address may be one of it as well."""
        had = ((self.parts, LATER), (self.whole, TWO), (self.parts, PART), (self.whole, ONE))
        self.assertEqual([ONE, TWO, PART, LATER], self.held(*had))
        expected = [device.parse(text) for text in (ONE, TWO, PART, LATER)]
        self.assertEqual(expected, self.assigned.devices(resources(*had)))
        self.assertEqual(([], []), (self.held(), self.assigned.devices(None)))
        other = uuidutils.generate_uuid()
        self.assertEqual([ONE], self.held((other, TWO), (self.whole, ONE), (other, PART)))
        both = resources((self.parts, PART), (self.whole, GONE))
        (part,) = self.assigned.held_of(self.assigned.vgpu_inventory, both)
        self.assertEqual(
            (PART, self.parts),
            (str(part.grant), self.compute.provider("1bb3", part.group.facts.id)),
        )

    def test_what_is_not_well(self) -> None:
        for had, reason in (
            ((self.whole, GONE), "it is not on this host"),
            ((self.parts, f"{GONE}/nvidia-63/0"), "no card of this host has it"),
        ):
            with self.assertRaisesRegex(exception.DeviceUnavailable, reason):
                self.held(had)
            self.assertEqual([device.parse(had[1])], self.assigned.devices(resources(had)))
        self.host.remove(ONE)
        self.compute.instance({"gpus": "1"}, (self.whole, ONE))
        self.compute.period()
        with self.assertRaisesRegex(exception.DeviceUnavailable, "no longer on the PCI bus"):
            self.held((self.whole, ONE))
        self.assertEqual([TWO], self.held((self.whole, TWO)))


class ProvidersTest(AssignedTestCase):
    """Before the first provider tree of a service was made"""

    def setUp(self) -> None:
        super().setUp()
        self.known = self.assigned.provider_uuids()
        for supply in self.assigned.supplies:
            supply.provider_uuids.clear()
        self.compute.queries = 0

    def test_placement_where_none_were_kept(self) -> None:
        self.assertEqual([], self.held())
        self.assertEqual({}, self.assigned.provider_uuids())
        self.assertEqual([ONE, PART], self.held((self.whole, ONE), (self.parts, PART)))
        self.assertEqual(0, self.compute.queries, "they were kept")
        for supply in self.assigned.supplies:
            supply.provider_uuids.clear()
        (self.host.root / "state/gpu-providers").unlink()
        self.assertEqual([ONE, PART], self.held((self.whole, ONE), (self.parts, PART)))
        count = self.compute.queries
        self.assertGreater(count, 0)
        self.held((self.whole, TWO))
        self.assertEqual(count, self.compute.queries, "once")
        self.assertEqual(self.known, self.assigned.provider_uuids())
        for supply in self.assigned.supplies:
            own = {key for key in self.known if key.is_in_parts is supply.in_parts}
            self.assertEqual(own, set(supply.provider_uuids))


class NovasVGPUsTest(AssignedTestCase):
    def of_others(self, owners: dict[str, str], instance: object = None) -> dict[str, str]:
        return self.assigned.devices_of_others(instance, owners, self.compute.gpus.ledger)

    def test_allocations(self) -> None:
        """Of those from nobody here Nova would start the guest without its vGPUs."""
        both = {self.parts: {"resources": {"VGPU": 1}}, OTHER: {"resources": {"VGPU": 2}}}
        self.assertEqual({OTHER: both[OTHER]}, self.assigned.allocations_of_others(both))
        foreign = {OTHER: {"resources": {"VGPU": 1}}}
        error = nova_exception.ComputeResourcesUnavailable
        self.assertRaises(error, self.assigned.allocations_of_others, foreign)
        config = self.useFixture(config_fixture.Config(CONF))
        config.config(group="devices", enabled_mdev_types=["nvidia-64"])
        self.assertEqual(foreign, self.assigned.allocations_of_others(foreign))

    def test_mediated_devices(self) -> None:
        """Ours are what it has, and what its domain named until it was taken away."""
        instance = self.compute.instance({}, (self.parts, str(OWN)))
        self.compute.gpus.ledger.saw_domains({instance.uuid: frozenset({NAMED})})
        ours = [device_uuid(instance.uuid, slot) for slot in (NAMED, OWN)]
        others = uuidutils.generate_uuid()
        owners = dict.fromkeys([*ours, others], instance.uuid)
        self.assertEqual({others: instance.uuid}, self.of_others(owners, instance))
        self.assertEqual({}, self.of_others(owners), "Nova has none")
        config = self.useFixture(config_fixture.Config(CONF))
        config.config(group="devices", enabled_mdev_types=["nvidia-64"])
        self.assertEqual(owners, self.of_others(owners), "of all instances all")

    def test_mediated_devices_of_an_instance_that_was_given_back(self) -> None:
        """Nova keeps those that the domain names."""
        for specs, others in (({"resources:VGPU": "1"}, 1), ({"vgpus": "= 1"}, 0)):
            instance = self.compute.instance(specs)
            self.compute.gpus.ledger.saw_domains({instance.uuid: frozenset({NAMED})})
            owners = {device_uuid(instance.uuid, NAMED): instance.uuid}
            self.assertEqual(others, len(self.of_others(owners, instance)), specs)

    def test_plain_instance_needs_nobody(self) -> None:
        """Also while Placement is down"""
        for supply in self.assigned.supplies:
            supply.provider_uuids.clear()
        before = self.compute.queries
        plain = self.compute.instance({})
        self.assertEqual({}, self.of_others({}, plain))
        for allocations in (None, {}, {OTHER: {"resources": {"VCPU": 1}}}):
            self.assertEqual(allocations, self.assigned.allocations_of_others(allocations))
        self.assertEqual(before, self.compute.queries)
