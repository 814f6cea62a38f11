# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core.flavor.placement_policy import Distribution
from nova_gpu.core.scheduling import rank
from nova_gpu.core.scheduling.stats import GroupStats, HostStats, Report
from tests.fixtures.flavor_requests import whole

BOARD = GroupStats("10de:2330", "hopper", "pci", 8, partitions=(1, 2, 4, 8))


class SetsTest(unittest.TestCase):
    def test_hosts_with_a_free_set_come_first(self) -> None:
        asked = whole({"gpus": "4"})
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


class NearTest(unittest.TestCase):
    def ranked(self, specs: dict[str, str], *near: tuple[int, ...] | None) -> list[rank.Rank]:
        """Of hosts that are equal but for what is beside their GPUs"""
        asked = whole(specs)
        host = HostStats("QEMU", (GroupStats("10de:25b6", "ampere", "pci", 4),))
        free = (((-1, 0, -1, -1, 4),),)
        return [
            rank.rank(asked, Report(host, free, near=each and (each,)), Distribution.PACK)
            for each in near
        ]

    def test_the_nearest_first(self) -> None:
        specs = {"gpus": "2", "gpu:near": "nic"}
        hosts = ((2, 4, 0, 0), (1, 4, 0, 0), (0, 4, 0, 0), (0, 1, 0, 0), (0, 0, 2, 4))
        found = self.ranked(specs, *hosts, None, (0, 0))
        self.assertEqual(sorted(found), found)
        self.assertEqual(5, len(set(found)))
        self.assertEqual(1, len(set(found[4:])))
