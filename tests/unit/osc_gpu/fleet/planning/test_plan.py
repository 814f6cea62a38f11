# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import random
import time
import unittest
from unittest import mock

from osc_gpu.fleet.planning import plan, search
from osc_gpu.fleet.planning.fleet import Fleet, Instance, Need, Plan, Way
from tests.unit.osc_gpu.fleet import fleets
from tests.unit.osc_gpu.fleet.fleets import host, instance, need

# A long run: NOVA_GPU_FLEETS=10000
FLEETS = int(os.environ.get("NOVA_GPU_FLEETS", "200"))


def moved(found: Plan) -> list[tuple[str, str, str]]:
    return [(move.instance.name, move.source, move.destination) for move in found.moves]


def price(found: Plan) -> tuple[int, int]:
    return len(found.moves), sum(move.way.cost for move in found.moves)


class PlanTest(unittest.TestCase):
    def assertPossible(self, now: Fleet, found: Plan) -> list[Fleet]:
        """Each step has room when it is made, and nothing is moved that may not be."""
        self.assertTrue(all(move.instance.way for move in found.moves))
        after = fleets.replayed(now, found)
        self.assertTrue(after, moved(found))
        return after


class SmallFleetsTest(PlanTest):
    def assertPlace(self, now: Fleet, wanted: Need, count: int) -> None:
        found = plan.place(now, wanted, count)
        best = fleets.fewest(now, lambda then: fleets.places(then, wanted) >= count)
        self.assertTrue(found.proven)
        self.assertEqual(best is not None, found.reached)
        if best:
            self.assertEqual(best, price(found))
            after = self.assertPossible(now, found)
            self.assertGreaterEqual(max(fleets.places(each, wanted) for each in after), count)

    def assertDrained(self, now: Fleet, name: str) -> None:
        def is_empty(then: Fleet) -> bool:
            return all(one.host != name for one in then.instances)

        found = plan.drain(now, name)
        best = fleets.fewest(now, is_empty, closed=name)
        self.assertTrue(found.proven)
        self.assertEqual(best is not None, found.reached)
        if best:
            self.assertEqual(best, price(found))
            self.assertTrue(all(map(is_empty, self.assertPossible(now, found))))
        self.assertNotIn(name, [move.destination for move in found.moves])

    def assertGathered(self, now: Fleet, wanted: Need) -> None:
        found = plan.defrag(now, wanted)
        most = fleets.most_places(now, wanted)
        self.assertTrue(found.reached and found.proven)
        self.assertEqual(
            fleets.fewest(now, lambda then: fleets.places(then, wanted) == most),
            price(found),
        )
        after = self.assertPossible(now, found)
        self.assertEqual(most, max(fleets.places(each, wanted) for each in after))

    def assertQuick(self, now: Fleet, wanted: Need, count: int) -> None:
        """Of any fleet, what the bounded search finds can be done."""
        with mock.patch.object(search, "MOST_HOSTS", 0):
            found = plan.place(now, wanted, count)
        if found.reached:
            after = self.assertPossible(now, found)
            self.assertGreaterEqual(max(fleets.places(each, wanted) for each in after), count)
        if found.proven:
            best = fleets.fewest(now, lambda then: fleets.places(then, wanted) >= count)
            self.assertEqual(best and best[0], len(found.moves) if found.reached else None)

    def test_no_plan_is_better(self) -> None:
        for seed in range(FLEETS):
            now, wanted, count = fleets.small(random.Random(seed))
            with self.subTest(seed=seed):
                self.assertPlace(now, wanted, count)
                self.assertDrained(now, now.hosts[0].name)
                self.assertQuick(now, wanted, count)
            if seed % 5 == 0:
                with self.subTest(seed=seed, gathered=True):
                    self.assertGathered(now, wanted)


class LargeFleetsTest(PlanTest):
    """What is known of them: the moves that undo those by which they frayed"""

    def frayed(self, hosts: int, seed: int) -> tuple[Fleet, int]:
        """At 95 %, a host of which was empty before so many moves"""
        dice = random.Random(seed)
        free = [0] + [8] * (hosts - 1)
        instances: list[Instance] = []
        while sum(free) > hosts * 8 * 0.05:
            size, on = dice.choice((1, 1, 1, 2, 2, 4)), dice.randrange(1, hosts)
            if free[on] >= size:
                free[on] -= size
                way = dice.choice((Way.LIVE, Way.COLD, Way.STOPPED, Way.COLD, None))
                wanted = need(size, vcpus=size)
                instances.append(instance(f"vm{len(instances)}", f"host{on}", wanted, way))
        known = left = dice.randint(1, 4)
        for number in dice.sample(range(len(instances)), len(instances)):
            each = instances[number]
            if left and each.way and each.gpus <= 2:
                left -= 1
                moved = instance(each.name, "host0", each.need, each.way)
                instances[number] = moved
        made = [host(f"host{n}", (8, 0), vcpus=64) for n in range(hosts)]
        return fleets.fleet(made, instances), known

    def test_a_place_for_eight_of_eight(self) -> None:
        for seed in range(5):
            now, known = self.frayed(100, seed)
            wanted = need(8, vcpus=8)
            began = time.process_time()
            found = plan.place(now, wanted, 1)
            self.assertLess(time.process_time() - began, 5)
            self.assertTrue(found.reached)
            self.assertLessEqual(len(found.moves), 1.2 * known)
            room = search.Room(now)
            for move in found.moves:
                number = now.instances.index(move.instance)
                (spot,) = (
                    each
                    for each in room.spots_for(number)
                    if now.hosts[each.host].name == move.destination
                )
                room.move(number, spot)
            self.assertEqual(1, sum(room.fitting(wanted, each) for each in range(100)))
            self.assertTrue(all(move.instance.way for move in found.moves))

    def test_the_search_has_an_end(self) -> None:
        now, _ = self.frayed(100, 0)
        with mock.patch.object(search, "MOST_LOOKS", 50):
            found = plan.place(now, need(8, vcpus=8), 3)
            self.assertEqual(((), False, False), (found.moves, found.reached, found.proven))
            self.assertTrue(plan.defrag(now, need(8)).reached)


if __name__ == "__main__":
    unittest.main()
