# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import itertools
import random
import unittest
from collections.abc import Sequence

from nova_gpu.core.flavor.placement_policy import Distribution
from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.scheduling import capacity, fit, rank
from nova_gpu.core.scheduling.capacity import Group, Host
from nova_gpu.core.scheduling.stats import Divided, GroupStats, HostStats, Report, Reserved
from nova_gpu.core.topology.topology import Islands
from tests.fixtures.flavor_requests import asked as vgpus_asked
from tests.fixtures.flavor_requests import whole

FERMI = frozenset({"CUSTOM_GPU", "CUSTOM_GPU_ARCH_FERMI", "CUSTOM_GPU_HYPERVISOR_LXC"})
KEPLER = frozenset({"CUSTOM_GPU", "CUSTOM_GPU_ARCH_KEPLER", "CUSTOM_GPU_HYPERVISOR_LXC"})
ANY = frozenset({"CUSTOM_GPU"})
SMALL = {"VCPU": 2, "MEMORY_MB": 512}


def group(free: int, traits: frozenset[str] = FERMI, *, total: int = 8, reserved: int = 0) -> Group:
    return Group(total, reserved, total - reserved - free, traits)


def host(*groups: Group, vcpus: int = 64, unusable: str | None = None, sees: bool = True) -> Host:
    return Host("host1", unusable, sees, {"VCPU": vcpus, "MEMORY_MB": 65536}, groups)


def asked(count: int, traits: frozenset[str] = ANY, forbidden: Sequence[str] = ()) -> GroupRequest:
    return GroupRequest("", count, traits, frozenset(forbidden))


class AnswerTest(unittest.TestCase):
    def test_how_many_and_why_no_more(self) -> None:
        for parts, there, instances, reason in (
            ([asked(2)], host(group(8)), 4, "no more GPUs"),
            ([asked(3)], host(group(8)), 2, "no more GPUs"),
            ([asked(3)], host(group(8), group(4, KEPLER)), 3, "no more GPUs"),
            ([asked(2, FERMI)], host(group(2), group(8, KEPLER)), 1, "no more GPUs"),
            ([asked(2)], host(group(8), vcpus=5), 2, "2 VCPU asked for, 1 free after 2"),
            ([asked(2)], host(group(8), vcpus=1), 0, "2 VCPU asked for, 1 free"),
            ([asked(9)], host(group(8)), 0, "9 GPUs asked for, it has 8"),
            ([asked(4)], host(group(3)), 0, "4 GPUs asked for, 3 of 8 free"),
            (
                [asked(4)],
                host(dataclasses.replace(group(8), max_unit=3)),
                0,
                "4 GPUs asked for, one guest here has room for 3",
            ),
            ([asked(3)], host(dataclasses.replace(group(8), max_unit=3)), 2, "no more GPUs"),
            (
                [asked(4)],
                host(group(3, reserved=2)),
                0,
                "4 GPUs asked for, 3 of 8 free (2 out of service)",
            ),
            ([asked(1, KEPLER)], host(group(8)), 0, "architecture fermi, not kepler"),
            (
                [asked(1, ANY | {"CUSTOM_GPU_MODEL_TESLA_K80"})],
                host(group(8, FERMI | {"CUSTOM_GPU_MODEL_TESLA_M2050"})),
                0,
                "model tesla_m2050, not tesla_k80",
            ),
            (
                [asked(1, ANY, ["CUSTOM_GPU_ARCH_FERMI"])],
                host(group(8)),
                0,
                "its GPUs are CUSTOM_GPU_ARCH_FERMI",
            ),
            ([asked(1)], host(group(8), unusable="down"), 0, "down"),
            (
                [asked(4)],
                host(group(3), unusable="drained"),
                0,
                "drained; 4 GPUs asked for, 3 of 8 free",
            ),
            ([asked(1)], host(), 0, "it has no GPUs"),
            (
                [asked(2), asked(2)],
                host(group(3)),
                0,
                "its free GPUs do not serve all request groups of the flavor",
            ),
            ([asked(2), asked(1)], host(group(3)), 1, "no more GPUs"),
        ):
            with self.subTest(asked=parts, host=there):
                (answer,) = capacity.answers(parts, SMALL, [there])
                self.assertEqual((instances, reason), (answer.instances, answer.reason))

    def test_placement_has_the_last_word(self) -> None:
        (answer,) = capacity.answers([asked(1)], SMALL, [host(group(8), sees=False)])
        self.assertEqual(0, answer.instances)
        self.assertIn("Placement has no candidate", answer.reason)


class WaysTest(unittest.TestCase):
    def test_tightest_first(self) -> None:
        groups = [group(8), group(2), group(1), group(4, KEPLER), group(2, reserved=6)]
        self.assertEqual([(1,), (4,), (0,)], capacity.combinations([asked(2, FERMI)], groups))
        self.assertEqual([], capacity.combinations([asked(9)], groups))


class PackingTest(unittest.TestCase):
    def test_as_brute_force(self) -> None:
        """Several groups in one instance: every order of serving them, tried."""
        chance = random.Random(0)
        for _ in range(200):
            kinds = [chance.choice((FERMI, KEPLER)) for _ in range(chance.randint(1, 3))]
            groups = [group(chance.randint(0, 4), kind, total=4) for kind in kinds]
            parts = [
                asked(chance.randint(1, 2), chance.choice((FERMI, KEPLER, ANY))) for _ in range(2)
            ]
            isolate = chance.random() < 0.5
            with self.subTest(groups=groups, parts=parts, isolate=isolate):
                expected = _brute_force(parts, groups, [group.free for group in groups], isolate)
                (answer,) = capacity.answers(parts, {}, [host(*groups)], isolate=isolate)
                self.assertEqual(expected, answer.instances)

    def test_many_groups(self) -> None:
        """Full ones come first, and no number is below what there is without saying so."""
        for full, free, parts, isolate, instances in (
            (9, 3, [1, 1], False, 12),
            (4, 3, [1, 1, 1], False, 8),
            (9, 3, [1, 1], True, 12),
            (70, 1, [1, 1], True, 0),
            (0, 200, [2, 2, 2, 2], True, 200),
        ):
            groups = [group(0)] * full + [group(8)] * free
            with self.subTest(full=full, free=free, parts=parts):
                requests = [asked(count) for count in parts]
                (answer,) = capacity.answers(requests, {}, [host(*groups)], isolate=isolate)
                self.assertEqual(instances, answer.instances)
                self.assertNotIn("at least", answer.reason)
        groups = [group(24, total=24)] * 5
        (answer,) = capacity.answers([asked(1), asked(2)], {}, [host(*groups)])
        self.assertEqual((40, "no more GPUs"), (answer.instances, answer.reason))
        (answer,) = capacity.answers([asked(3), asked(5)], {}, [host(*[group(23, total=23)] * 5)])
        self.assertIn("at least", answer.reason)


def _brute_force(
    parts: Sequence[GroupRequest], groups: Sequence[Group], free: list[int], isolate: bool
) -> int:
    best = 0
    for way in itertools.product(range(len(groups)), repeat=len(parts)):
        left = list(free)
        for part, index in zip(parts, way, strict=True):
            left[index] -= part.count
        served = min(left) >= 0 and not (isolate and len(set(way)) < len(way))
        if served and all(
            capacity.fits(part, groups[index]) for part, index in zip(parts, way, strict=True)
        ):
            best = max(best, 1 + _brute_force(parts, groups, left, isolate))
    return best


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
            answers = tuple(fit.serves(group, wanted, wanted.groups[0]) for group in (A100, OLD))
            with self.subTest(specs=specs):
                self.assertEqual((known, old), answers)


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
                self.assertEqual(count, fit.most_free(vgpus_asked(**specs), divided))


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


BOARD = GroupStats("10de:2330", "hopper", "pci", 8, partitions=(1, 2, 4, 8))


class SetsTest(unittest.TestCase):
    def test_hosts_with_a_free_set_come_first(self) -> None:
        vgpus_asked = whole({"gpus": "4"})
        free = (((-1, -1, -1, -1, 6),),)
        with_set, without, unknown = (
            rank.rank(
                vgpus_asked,
                Report(HostStats("QEMU", (BOARD,)), free, free_partitions=sets),
                Distribution.PACK,
            )
            for sets in ((((1, 6), (4, 1)),), (((1, 6), (2, 2)),), None)
        )
        self.assertEqual([0, 1, 1], [score[0] for score in (with_set, without, unknown)])


class NearTest(unittest.TestCase):
    def ranked(self, specs: dict[str, str], *near: tuple[int, ...] | None) -> list[rank.Rank]:
        """Of hosts that are equal but for what is beside their GPUs"""
        vgpus_asked = whole(specs)
        host = HostStats("QEMU", (GroupStats("10de:25b6", "ampere", "pci", 4),))
        free = (((-1, 0, -1, -1, 4),),)
        return [
            rank.rank(vgpus_asked, Report(host, free, near=pair and (pair,)), Distribution.PACK)
            for pair in near
        ]

    def test_the_nearest_first(self) -> None:
        specs = {"gpus": "2", "gpu:near": "nic"}
        hosts = ((2, 4, 0, 0), (1, 4, 0, 0), (0, 4, 0, 0), (0, 1, 0, 0), (0, 0, 2, 4))
        ranks = self.ranked(specs, *hosts, None, (0, 0))
        self.assertEqual(sorted(ranks), ranks)
        self.assertEqual(5, len(set(ranks)))
        self.assertEqual(1, len(set(ranks[4:])))
