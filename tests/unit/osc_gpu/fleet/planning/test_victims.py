# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import itertools
import os
import random
import time
import unittest
from unittest import mock

from osc_gpu.fleet.planning import plan, victims
from osc_gpu.fleet.planning.fleet import Fleet, Instance, Need
from osc_gpu.fleet.planning.victims import Choice
from tests.unit.osc_gpu.fleet import fleets
from tests.unit.osc_gpu.fleet.fleets import host, instance, need

# A long run: NOVA_GPU_FLEETS=10000
FLEETS = int(os.environ.get("NOVA_GPU_FLEETS", "200"))


def price(who: tuple[Instance, ...], costs: dict[str, int]) -> tuple[int, int, int]:
    return len(who), sum(costs[each.uuid] for each in who), sum(each.gpus for each in who)


def without(now: Fleet, who: tuple[Instance, ...]) -> Fleet:
    left = tuple(each for each in now.instances if each not in who)
    return fleets.fleet(fleets.emptied(now).hosts, left)


def fewest(
    now: Fleet, wanted: Need, count: int, costs: dict[str, int]
) -> tuple[int, int, int] | None:
    """The price of the best victims, found by trying all; ``None`` where all of them are too few"""
    eligible = [each for each in now.instances if each.uuid in costs]
    for size in range(len(eligible) + 1):
        prices = [
            price(who, costs)
            for who in itertools.combinations(eligible, size)
            if fleets.places(without(now, who), wanted) >= count
        ]
        if prices:
            return min(prices)
    return None


def named(found: Choice) -> list[str]:
    return sorted(each.name for each in found.victims)


class VictimsTest(unittest.TestCase):
    def test_no_choice_is_better(self) -> None:
        """Nor does it ever have one who may not be chosen."""
        reached = 0
        for seed in range(FLEETS):
            dice = random.Random(seed)
            now, wanted, count = fleets.small(dice)
            costs = {e.uuid: dice.randint(0, 2) for e in now.instances if dice.random() < 0.7}
            with self.subTest(seed=seed):
                found = victims.choose(now, wanted, count, costs)
                self.assertTrue(found.proven)
                self.assertLessEqual({each.uuid for each in found.victims}, costs.keys())
                if found.places < count:
                    self.assertIsNone(fewest(now, wanted, count, costs))
                    count = found.places
                self.assertEqual(fewest(now, wanted, count, costs), price(found.victims, costs))
                then = victims.after(now, wanted, found)
                gone = without(now, found.victims)
                self.assertEqual(gone.instances, then.instances)
                left = plan.places(then, wanted)
                self.assertLessEqual(left, fleets.places(gone, wanted) - count)
                reached += bool(found.victims)
        self.assertGreater(reached, FLEETS / 10)

    def test_the_bounded_search_has_none_who_could_stay(self) -> None:
        for seed in range(FLEETS // 5):
            dice = random.Random(seed)
            now, wanted, count = fleets.small(dice)
            costs = {each.uuid: 0 for each in now.instances}
            with self.subTest(seed=seed), mock.patch.object(victims, "MOST_LOOKS", 0):
                found = victims.choose(now, wanted, count, costs)
                best = fewest(now, wanted, count, costs)
                self.assertEqual(best is not None, found.places == count)
                for each in found.victims:
                    others = tuple(one for one in found.victims if one != each)
                    self.assertLess(fleets.places(without(now, others), wanted), found.places)

    def test_the_fewest_before_the_cheapest(self) -> None:
        there = [instance("small", "host1", need(1)), instance("also", "host1", need(1))]
        there.append(instance("large", "host1", need(2)))
        now = fleets.fleet([host("host1", (4, 0))], there)
        costs = {"small": 0, "also": 0, "large": 9}
        self.assertEqual(["large"], named(victims.choose(now, need(2), 1, costs)))
        self.assertEqual(["small"], named(victims.choose(now, need(1), 1, costs)))

    def test_one_who_keeps_its_processors_frees_none(self) -> None:
        """As a stopped instance does"""
        stopped = instance("a", "host1", need(1, vcpus=4))
        now = fleets.fleet([host("host1", (1, 0), vcpus=4)], [stopped])
        self.assertEqual(1, victims.choose(now, need(1, vcpus=1), 1, {"a": 0}).places)
        kept = dataclasses.replace(stopped, need=need(1))
        now = dataclasses.replace(now, instances=(kept,))
        self.assertEqual(0, victims.choose(now, need(1, vcpus=1), 1, {"a": 0}).places)

    def test_a_large_fleet(self) -> None:
        dice = random.Random(1)
        hosts = [host(f"host{n}", (8, 0), vcpus=64) for n in range(1000)]
        there = []
        for n in range(1000):
            left = 8
            while left:
                size = min(left, dice.choice((1, 1, 2, 4)))
                wanted = need(size, vcpus=size)
                there.append(instance(f"vm{len(there)}", f"host{n}", wanted))
                left -= size
        now = fleets.fleet(hosts, there)
        costs = {each.uuid: dice.randint(1, 3) for each in there if dice.random() < 0.9}
        began = time.process_time()
        found = victims.choose(now, need(8, vcpus=8), 5, costs)
        self.assertLess(time.process_time() - began, 20)
        self.assertTrue(found.places == 5 and found.proven)
        self.assertLessEqual(len(found.victims), 15)


if __name__ == "__main__":
    unittest.main()
