# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import unittest

from nova_gpu.core.scheduling import fit
from nova_gpu.core.scheduling.stats import Divided, GroupStats, Reserved
from nova_gpu.core.topology.topology import Islands
from tests.fixtures.flavor_requests import asked, whole

A100 = GroupStats(
    "10de:20b2",
    "ampere",
    "lxc",
    8,
    model="A100 SXM4 80GB",
    memory_mib=81920,
    islands=Islands(numa=4, nvlink=8),
)
# As a host of the first version of stats is read.
OLD = GroupStats("10de:20b2", "ampere", "lxc", 8)


class ServesTest(unittest.TestCase):
    def test_sets_of_cards(self) -> None:
        board = dataclasses.replace(A100, partitions=(1, 2, 4, 8))
        for count, served in ((1, True), (3, False), (4, True), (5, False), (8, True)):
            wanted = whole({"gpus": str(count)})
            with self.subTest(count):
                self.assertEqual(served, fit.serves(board, wanted, wanted.groups[0]))

    def test_table(self) -> None:
        for specs, known, old in (
            ({"gpus": "8"}, True, True),
            ({"gpus": "9"}, False, False),
            ({"gpus": "1", "gpu_arch": "ampere"}, True, True),
            ({"gpus": "1", "gpu_arch": "ada"}, False, False),
            ({"gpus": "1", "gpu:model": "<in> A100"}, True, False),
            ({"gpus": "1", "gpu:model": "a100 sxm4 80gb"}, True, False),
            ({"gpus": "1", "gpu:model": "s!= H200"}, True, False),
            ({"gpus": "1", "gpu:model": "A100"}, False, False),
            ({"gpus": "1", "gpu:memory_mib": ">= 40960"}, True, False),
            ({"gpus": "1", "gpu:memory_mib": "<= 40960"}, False, False),
            ({"gpus": "4", "gpu:topology": "numa"}, True, False),
            ({"gpus": "5", "gpu:topology": "numa"}, False, False),
            ({"gpus": "5", "gpu:topology": "numa", "gpu:topology_policy": "preferred"}, True, True),
            ({"gpus": "8", "gpu:topology": "nvlink"}, True, False),
            ({"gpus": "8", "gpu:topology": "any"}, True, True),
            ({"gpus": "1", "gpu:topology": "nvlink"}, True, True),
        ):
            wanted = whole(specs)
            found = tuple(fit.serves(group, wanted, wanted.groups[0]) for group in (A100, OLD))
            with self.subTest(specs=specs):
                self.assertEqual((known, old), found)


class MostFreeTest(unittest.TestCase):
    def test_of_the_type_that_is_asked_for(self) -> None:
        free = (("nvidia-63", "GRID P4-1Q", 8), ("nvidia-66", None, 1))
        divided = Divided(1, 1, free, ((1024, 4), (8192, None)))
        for specs, count in (
            ({"vgpus": "1"}, 8),
            ({"vgpus": "1", "vgpu_type": "nvidia-66"}, 1),
            ({"vgpus": "1", "vgpu_type": "GRID P4-1Q"}, 8),
            ({"vgpus": "1", "vgpu_type": "GRID P4-8Q"}, 0),
            ({"vgpus": "1", "gpu:memory_mib": "2048"}, 1),
            ({"vgpus": "1", "gpu:memory_mib": "<= 8192"}, 8),
            ({"vgpus": "1", "gpu:memory_mib": "16384"}, 0),
            ({"vgpus": "1", "gpu:heads": "1", "gpu:memory_mib": "2048"}, 0),
            ({"vgpus": "1", "gpu:heads": "1"}, 8),
        ):
            with self.subTest(specs):
                self.assertEqual(count, fit.most_free(asked(**specs), divided))


class StrandedTest(unittest.TestCase):
    def test_table(self) -> None:
        for vcpus, memory, free, reserved, part in (
            (16, 65536, 4, Reserved(4, 16384), None),
            (15, 65536, 4, Reserved(4, 16384), "15 vCPUs would be left, and 4 free GPUs need 4"),
            (16, 65535, 4, Reserved(4, 16384), "65535 MiB of memory would be left"),
            (15, 65535, 3, Reserved(4, 16384), None),
            (-3.5, 0, 0, Reserved(4, 16384), None),
            (-3.5, 0, 1, Reserved(4, 0), "0 vCPUs"),
            (0, 0, 8, Reserved(), None),
        ):
            with self.subTest(vcpus=vcpus, memory=memory, free=free):
                reason = fit.stranded(vcpus, memory, free, reserved)
                self.assertEqual(part is None, reason is None, reason)
                self.assertIn(part or "", reason or "")
