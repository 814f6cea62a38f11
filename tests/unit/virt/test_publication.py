# SPDX-License-Identifier: Apache-2.0
"""What Placement and the scheduler read of a host with whole and divided cards."""

from __future__ import annotations

import fixtures
from nova import objects

from nova_gpu.core.scheduling import stats
from nova_gpu.virt.inventory.card_inventory import CardInventory
from tests.fixtures import hosts
from tests.fixtures.bases import compute
from tests.fixtures.bases.compute import ONE
from tests.fixtures.compute import Compute


class PublicationTest(compute.ComputeTestCase):
    def resources(self) -> set[objects.Resource]:
        return set(self.compute.tree.data(self.provider).resources["PGPU"])

    def test_free(self) -> None:
        """Whole ones, and shared ones with room"""
        self.assertEqual(3, self.compute.gpus.publication.free())
        instance = self.compute.instance({"gpus": "1"}, (self.provider, ONE))
        self.compute.spawn(instance)
        self.compute.period()
        self.assertEqual(2, self.compute.gpus.publication.free())
        self.compute.delete(instance)
        self.compute.period()
        self.assertEqual(3, self.compute.gpus.publication.free())

    def test_stats(self) -> None:
        told = stats.loads(self.compute.gpus.publication.stats() or "")
        self.assertEqual((3, 1), (told.cards, told.divided.free))
        bare = self.useFixture(Compute(hosts.Host(self.useFixture(fixtures.TempDir()).path)))
        self.assertIsNone(bare.gpus.publication.stats())

    def test_inventory_that_fails_takes_no_claim(self) -> None:
        """As at the first of a service, whose tree Placement filled without the devices"""
        devices_of = self.compute.tree.data(self.provider).resources
        self.compute.tree.update_resources(self.provider, {})
        with fixtures.MockPatchObject(CardInventory, "publish", side_effect=ZeroDivisionError):
            self.compute.publish()
        self.assertIn("Failed to publish all of this host's GPUs", self.log.output)
        self.assertEqual(set(), set(self.resources()))
        self.compute.publish()
        self.assertEqual(set(devices_of["PGPU"]), set(self.resources()))
        self.assertEqual(2, len(devices_of["PGPU"]))
