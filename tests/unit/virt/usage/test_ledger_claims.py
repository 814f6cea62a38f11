# SPDX-License-Identifier: Apache-2.0
"""Times and sets; what Nova's tracker makes of its sets is tested with the pool."""

from __future__ import annotations

import unittest

from nova import objects

from nova_gpu.virt.inventory import pool
from nova_gpu.virt.usage.ledger import Ledger
from tests.fixtures import cards

A, B, C = cards.addresses("0000:04:00.0", "0000:05:00.0", "0000:08:00.0")


class ClaimsTest(unittest.TestCase):
    def setUp(self) -> None:
        self.now = 1000.0
        self.ledger = Ledger(lambda: self.now)
        self.assigned: set[objects.Resource] = set()

    def test_for_a_time(self) -> None:
        self.ledger.claim({A}, (), self.assigned, 60)
        self.now += 30
        self.ledger.claim({B}, (), self.assigned, 60)
        self.assertEqual({A, B}, self.ledger.now.taken())
        self.now += 30
        self.assertEqual({B}, self.ledger.now.taken())
        self.now += 30
        self.assertEqual(set(), self.ledger.now.taken())

    def test_put_back(self) -> None:
        self.ledger.claim({A}, (), self.assigned, 60)
        self.ledger.claim({B, C}, {A}, self.assigned, 60)
        self.assertEqual({B, C}, self.ledger.now.taken())

    def test_assigned_stays(self) -> None:
        self.ledger.claim({A, B}, (), self.assigned, 60)
        self.assigned |= {pool.resource("group", A)}
        self.ledger.compare({B, C}, self.assigned)
        self.assertEqual({A}, self.ledger.now.taken())

    def test_released_by_a_set_that_knew_it(self) -> None:
        self.ledger.claim({A}, (), set(), 60)
        self.assigned |= {pool.resource("group", A)}
        self.ledger.compare(set(), self.assigned)
        self.assigned.clear()
        self.ledger.compare({A}, self.assigned)
        self.assertEqual(set(), self.ledger.now.taken())

    def test_equal_is_not_the_same(self) -> None:
        self.ledger.claim({A}, (), self.assigned, 60)
        self.ledger.compare({A}, set(self.assigned))
        self.assertEqual({A}, self.ledger.now.taken())

    def test_another_providers_set_says_nothing(self) -> None:
        self.ledger.claim({A}, (), self.assigned, 60)
        self.ledger.compare({B, C}, set())
        self.assertEqual({A}, self.ledger.now.taken())

    def test_past_its_time_nothing_is_said(self) -> None:
        self.ledger.claim({A}, (), self.assigned, 60)
        self.now += 60
        with self.assertNoLogs("nova_gpu.virt.usage.ledger"):
            self.ledger.compare({A}, set())
