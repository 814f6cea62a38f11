# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from nova.scheduler.weights import ram
from oslotest import base

from benchmarks import board_race
from nova_gpu.scheduler.weights import GPUWeigher


class TestBoardRace(base.BaseTestCase):
    def test_the_weigher_knows_which_sets_are_free(self) -> None:
        ours = board_race.race(20, 8, 10, [ram.RAMWeigher(), GPUWeigher()])
        other = board_race.race(20, 8, 10, [ram.RAMWeigher()])
        self.assertGreater(other.refused, 4 * ours.refused)
        self.assertGreater(ours.instances, 20)
