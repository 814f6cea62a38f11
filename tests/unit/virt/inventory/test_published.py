# SPDX-License-Identifier: Apache-2.0
"""What whole cards and vGPUs have in common, by whole cards."""

from __future__ import annotations

import fixtures
from oslo_utils import uuidutils

from nova_gpu.core import device
from nova_gpu.virt.usage.ledger import State
from tests.fixtures import hosts
from tests.fixtures.bases import compute
from tests.fixtures.bases.compute import ONE, TWO
from tests.fixtures.compute import Compute, devices, resource, resources
from tests.fixtures.histories import NODENAME

GONE = "0000:d8:00.0"


class PublishedTest(compute.ComputeTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.published = self.gpus.assigned.whole
        self.ledger = self.gpus.ledger

    def test_of_this_host(self) -> None:
        other = uuidutils.generate_uuid()
        had = resources((self.provider, TWO), (other, ONE), (self.provider, GONE))
        self.assertEqual(devices([TWO, GONE]), self.published.devices(had))
        self.assertEqual(frozenset(), self.published.devices(None))
        part = resource(self.provider, f"{ONE}/nvidia-63/0")
        self.assertEqual(frozenset(), self.published.devices([part]), "of another resource class")
        held = self.published.held(resources((self.provider, TWO), (self.provider, ONE)))
        self.assertEqual([ONE, TWO], [str(each.device) for each in held])
        group = self.published.group_of(self.provider)
        for each in held:
            self.assertIs(group, each.group)
            self.assertEqual(each.device, each.grant.address)  # type: ignore[union-attr]

    def test_claimed_for_as_long_as_the_option_says(self) -> None:
        self.compute.config(group="gpu", claim_grace_period=7)
        claim = fixtures.MockPatchObject(self.ledger, "claim", wraps=self.ledger.claim)
        self.useFixture(claim)
        address = device.parse(ONE)
        self.published.hand_out([address], [], set())
        self.assertEqual([7], [call.args[-1] for call in claim.mock.mock_calls])
        self.assertIn(address, self.ledger.now.devices(State.CLAIMED))
        self.assertNotIn(address, self.published.usable(self.provider, devices([ONE, TWO]), set()))

    def inventory(self, field: str) -> int:
        return int(self.compute.tree.data(self.provider).inventory["PGPU"][field])

    def test_a_product_that_is_no_more(self) -> None:
        """Its provider may have allocations, and offers nothing."""
        self.assertEqual((2, 0), (self.inventory("total"), self.inventory("reserved")))
        for address in (ONE, TWO):
            self.host.remove(address)
        self.compute.restart()
        self.assertEqual(self.inventory("total"), self.inventory("reserved"))
        self.assertIsNone(self.published.group_of(NODENAME))

    def test_host_without_any(self) -> None:
        bare = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        compute = self.useFixture(Compute(bare))
        self.assertEqual([compute.tree.data(NODENAME).uuid], compute.tree.get_provider_uuids())
        self.assertFalse(compute.gpus.has_gpus)
