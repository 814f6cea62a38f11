# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import fixtures
from oslo_utils import uuidutils
from oslotest import base

from nova_gpu.core import device, exception
from nova_gpu.virt.inventory.assigned import Assigned
from tests.fixtures import hosts, vgpu
from tests.fixtures.compute import Compute, resources

ONE, TWO, DIVIDED = "0000:3b:00.0", "0000:af:00.0", "0000:5e:00.0"
PART, LATER = (f"{DIVIDED}/nvidia-63/{number}" for number in (1, 2))
GONE = "0000:d8:00.0"


class AssignedTestCase(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        for address in (ONE, TWO):
            self.host.add_gpu(address, "10de", "2335", driver="vfio-pci")
        self.host.add_gpu(DIVIDED, "10de", "1bb3")
        vgpu.add_types(self.host, DIVIDED, vgpu.TESLA_P4)
        self.compute = self.useFixture(Compute(self.host))
        self.whole = self.compute.provider("2335")
        self.parts = self.compute.provider("1bb3", "nvidia-63")

    @property
    def assigned(self) -> Assigned:
        return self.compute.gpus.assigned

    def held(self, *had: tuple[str, str]) -> list[str]:
        found = self.assigned.held(resources(*had))
        return [str(each.device) for own in found.values() for each in own]


class AssignedTest(AssignedTestCase):
    def test_whole_cards_first(self) -> None:
        had = ((self.parts, LATER), (self.whole, TWO), (self.parts, PART), (self.whole, ONE))
        self.assertEqual([ONE, TWO, PART, LATER], self.held(*had))
        expected = [device.parse(text) for text in (ONE, TWO, PART, LATER)]
        self.assertEqual(expected, self.assigned.devices(resources(*had)))
        self.assertEqual(([], []), (self.held(), self.assigned.devices(None)))

    def test_by_its_provider(self) -> None:
        """After a move the address may be one of this host as well."""
        other = uuidutils.generate_uuid()
        self.assertEqual([ONE], self.held((other, TWO), (self.whole, ONE), (other, PART)))

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

    def test_one_kind(self) -> None:
        had = resources((self.parts, PART), (self.whole, GONE))
        (part,) = self.assigned.held_of(self.assigned.parts, had)
        self.assertEqual(
            (PART, self.parts),
            (str(part.given), self.compute.provider("1bb3", part.group.facts.id)),
        )


class ProvidersTest(AssignedTestCase):
    """Before the first provider tree of a service was made"""

    def setUp(self) -> None:
        super().setUp()
        self.known = self.assigned.provider_uuids()
        for supply in self.assigned.supplies:
            supply.provider_uuids.clear()
        self.compute.asked = 0

    def test_kept_ones(self) -> None:
        self.assertEqual([ONE, PART], self.held((self.whole, ONE), (self.parts, PART)))
        self.assertEqual(0, self.compute.asked)

    def test_placement_where_none_were_kept(self) -> None:
        (self.host.root / "state/gpu-providers").unlink()
        self.assertEqual([ONE, PART], self.held((self.whole, ONE), (self.parts, PART)))
        asked = self.compute.asked
        self.assertGreater(asked, 0)
        self.held((self.whole, TWO))
        self.assertEqual(asked, self.compute.asked, "once")
        self.assertEqual(self.known, self.assigned.provider_uuids())
        for supply in self.assigned.supplies:
            own = {key for key in self.known if key.is_in_parts is supply.in_parts}
            self.assertEqual(own, set(supply.provider_uuids))

    def test_nobody_is_asked_for_a_plain_instance(self) -> None:
        self.assertEqual([], self.held())
        self.assertEqual({}, self.assigned.provider_uuids())
