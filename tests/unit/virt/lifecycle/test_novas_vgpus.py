# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import fixtures
from oslo_utils import uuidutils
from oslotest import base

from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.virt.lifecycle import novas_vgpus
from tests.fixtures import hosts, vgpu
from tests.fixtures.compute import Compute

CARD = "0000:5e:00.0"
NAMED, OWN = (Slot.parse(f"{CARD}/nvidia-63/{number}") for number in (0, 1))
OTHER = uuidutils.generate_uuid()


class NovasVGPUsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        host.add_gpu(CARD, "10de", "1bb3")
        vgpu.add_types(host, CARD, vgpu.TESLA_P4)
        self.compute = self.useFixture(Compute(host))
        self.provider = self.compute.provider("1bb3", "nvidia-63")
        self.assigned = self.compute.gpus.assigned
        self.ledger = self.compute.gpus.ledger

    def of_others(self, found: dict[str, str], instance: object = None) -> dict[str, str]:
        return novas_vgpus.mediated_devices(self.assigned, self.ledger, instance, found)

    def test_allocations(self) -> None:
        both = {
            self.provider: {"resources": {"VGPU": 1}},
            OTHER: {"resources": {"VGPU": 2}},
        }
        self.assertEqual({OTHER: both[OTHER]}, novas_vgpus.allocations(self.assigned, both))

    def test_mediated_devices(self) -> None:
        """Ours are what it has, and what its domain named until it was taken away."""
        instance = self.compute.instance({}, (self.provider, str(OWN)))
        self.ledger.saw_domains({instance.uuid: frozenset({NAMED})})
        ours = [device_uuid(instance.uuid, slot) for slot in (NAMED, OWN)]
        others = uuidutils.generate_uuid()
        found = dict.fromkeys([*ours, others], instance.uuid)
        self.assertEqual({others: instance.uuid}, self.of_others(found, instance))
        self.assertEqual(found, self.of_others(found), "of all instances all")

    def test_plain_instance_needs_nobody(self) -> None:
        """Also while Placement is down"""
        for supply in self.assigned.supplies:
            supply.provider_uuids.clear()
        before = self.compute.asked
        plain = self.compute.instance({})
        self.assertEqual({}, self.of_others({}, plain))
        for each in (None, {}, {OTHER: {"resources": {"VCPU": 1}}}):
            self.assertEqual(each, novas_vgpus.allocations(self.assigned, each))
        self.assertEqual(before, self.compute.asked)
