# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import itertools
import random
import unittest
from collections.abc import Sequence

from nova_gpu.core.flavor.request_group import GroupRequest
from nova_gpu.core.scheduling import capacity
from nova_gpu.core.scheduling.capacity import Group, Host
from nova_gpu.core.sets import set_traits
from tests.fixtures.partitions import H100

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


class BoardTest(unittest.TestCase):
    """Of eight cards that guests get in sets alone"""

    def answer(self, free: set[int], *counts: int) -> tuple[int, str]:
        traits = ANY | set_traits.traits(H100, free)
        there = Group(8, 0, 8 - len(free), traits, set_traits.board(traits))
        parts = [asked(count) for count in counts]
        (answer,) = capacity.answers(parts, SMALL, [host(there)])
        return answer.instances, answer.reason

    def test_free_ones_that_are_no_set(self) -> None:
        six = {2, 3, 4, 6, 7, 8}
        self.assertEqual(
            (0, "4 GPUs asked for, 6 of 8 free, no free partition of 4"), self.answer(six, 4)
        )
        self.assertEqual((2, "no more GPUs"), self.answer(six, 2))
        self.assertEqual((6, "no more GPUs"), self.answer(six, 1))
        self.assertEqual(0, self.answer(six, 3)[0])
        self.assertEqual((1, "no more GPUs"), self.answer({1, 2, 3, 4, 5}, 4))
        self.assertEqual((2, "no more GPUs"), self.answer({*range(1, 9)}, 4))


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
            ([asked(1, KEPLER)], host(group(8)), 0, "arch fermi, not kepler"),
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
            ([asked(1)], host(group(8), unusable="it is down"), 0, "it is down"),
            ([asked(1)], host(), 0, "it has no GPUs"),
        ):
            with self.subTest(asked=parts, host=there):
                (answer,) = capacity.answers(parts, SMALL, [there])
                self.assertEqual((instances, reason), (answer.instances, answer.reason))

    def test_placement_has_the_last_word(self) -> None:
        (answer,) = capacity.answers([asked(1)], SMALL, [host(group(8), sees=False)])
        self.assertEqual(0, answer.instances)
        self.assertIn("Placement has no candidate", answer.reason)

    def test_the_fullest_answer_comes_first(self) -> None:
        hosts = [host(group(free)) for free in (2, 8, 0)]
        found = capacity.answers([asked(2)], SMALL, hosts)
        self.assertEqual([4, 1, 0], [each.instances for each in found])
        self.assertEqual([8, 2, 0], [each.free for each in found])


class WaysTest(unittest.TestCase):
    def test_tightest_first(self) -> None:
        groups = [group(8), group(2), group(1), group(4, KEPLER), group(2, reserved=6)]
        self.assertEqual([(1,), (4,), (0,)], capacity.ways([asked(2, FERMI)], groups))
        self.assertEqual([], capacity.ways([asked(9)], groups))


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
                expected = _brute_force(parts, groups, [each.free for each in groups], isolate)
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
    found = 0
    for way in itertools.product(range(len(groups)), repeat=len(parts)):
        left = list(free)
        for part, index in zip(parts, way, strict=True):
            left[index] -= part.count
        served = min(left) >= 0 and not (isolate and len(set(way)) < len(way))
        if served and all(
            capacity.fits(part, groups[index]) for part, index in zip(parts, way, strict=True)
        ):
            found = max(found, 1 + _brute_force(parts, groups, left, isolate))
    return found
