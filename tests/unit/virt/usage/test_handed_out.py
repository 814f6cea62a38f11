# SPDX-License-Identifier: Apache-2.0
"""Times and sets; what Nova's tracker makes of its sets is tested with the pool."""

from __future__ import annotations

import unittest

from nova import objects

from nova_gpu.virt.inventory import pool
from nova_gpu.virt.usage import handed_out
from tests.fixtures import cards

A, B, C = cards.addresses("0000:04:00.0", "0000:05:00.0", "0000:08:00.0")


class HandedOutTest(unittest.TestCase):
    def setUp(self) -> None:
        objects.register_all()
        self.handed_out = handed_out.HandedOut()
        self.assigned: set[objects.Resource] = set()

    def test_for_a_time(self) -> None:
        self.handed_out.add({A}, (), self.assigned, 60)
        self.handed_out.add({B}, (), self.assigned, -1)
        self.assertEqual({A}, self.handed_out.waiting())

    def test_put_back(self) -> None:
        self.handed_out.add({A}, (), self.assigned, 60)
        self.handed_out.add({B, C}, {A}, self.assigned, 60)
        self.assertEqual({B, C}, self.handed_out.waiting())

    def test_dropped(self) -> None:
        self.handed_out.add({A, B}, (), self.assigned, 60)
        self.handed_out.drop({A, C})
        self.assertEqual({B}, self.handed_out.waiting())

    def test_assigned_stays(self) -> None:
        self.handed_out.add({A, B}, (), self.assigned, 60)
        self.assigned |= {pool.resource("group", A)}
        self.handed_out.compare({B, C}, self.assigned)
        self.assertEqual({A}, self.handed_out.waiting())

    def test_equal_is_not_the_same(self) -> None:
        self.handed_out.add({A}, (), self.assigned, 60)
        self.handed_out.compare({A}, set(self.assigned))
        self.assertEqual({A}, self.handed_out.waiting())

    def test_another_providers_set_says_nothing(self) -> None:
        self.handed_out.add({A}, (), self.assigned, 60)
        self.handed_out.compare({B, C}, set())
        self.assertEqual({A}, self.handed_out.waiting())

    def test_past_its_time_nothing_is_said(self) -> None:
        self.handed_out.add({A}, (), self.assigned, -1)
        with self.assertNoLogs("nova_gpu.virt.usage.handed_out"):
            self.handed_out.compare({A}, set())
