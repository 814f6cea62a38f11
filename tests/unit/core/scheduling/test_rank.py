# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core.flavor import request
from nova_gpu.core.flavor.arrangement import Distribution
from nova_gpu.core.scheduling import rank
from nova_gpu.core.scheduling.stats import GroupStats, HostStats, Report

BOARD = GroupStats("10de:2330", "hopper", "pci", 8, partitions=(1, 2, 4, 8))


class SetsTest(unittest.TestCase):
    def test_hosts_with_a_free_set_come_first(self) -> None:
        asked = request.of({"gpus": "4"}).whole
        assert asked
        free = (((-1, -1, -1, -1, 6),),)
        with_set, without, unknown = (
            rank.rank(
                asked,
                Report(HostStats("QEMU", (BOARD,)), free, free_partitions=sets),
                Distribution.PACK,
            )
            for sets in ((((1, 6), (4, 1)),), (((1, 6), (2, 2)),), None)
        )
        self.assertEqual([0, 1, 1], [each[0] for each in (with_set, without, unknown)])
