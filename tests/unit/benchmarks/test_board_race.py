# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from nova.scheduler.weights import ram
from oslotest import base

from benchmarks import board_race
from nova_gpu.scheduler.weights import GPUWeigher


class TestBoardRace(base.BaseTestCase):
    def test_the_weigher_knows_which_sets_are_free(self) -> None:
        ours = board_race.race(20, 8, 100, [ram.RAMWeigher(), GPUWeigher()])
        other = board_race.race(20, 8, 100, [ram.RAMWeigher()])
        # By other orders of the hosts 2 to 13 times as many
        self.assertGreater(other.refused, 2 * ours.refused)
        self.assertGreater(ours.instances, 200)
