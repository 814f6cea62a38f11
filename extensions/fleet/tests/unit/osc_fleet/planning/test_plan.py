# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import itertools
import os
import random
import time
import unittest
from unittest import mock

from nova_gpu_fleet.core.extra_specs import Consent
from osc_gpu_fleet.planning import plan, search, victims
from osc_gpu_fleet.planning.fleet import (
    Fleet,
    Instance,
    ModulesByGroup,
    Need,
    Plan,
    Way,
    permitted_way,
    with_last_set,
)
from tests.fixtures import card_sets
from tests.unit.osc_fleet import fleets
from tests.unit.osc_fleet.fleets import host, instance, need

# A long run: NOVA_GPU_FLEETS=10000
FLEETS = int(os.environ.get("NOVA_GPU_FLEETS", "200"))


def moved(move_plan: Plan) -> list[tuple[str, str, str]]:
    return [(move.instance.name, move.source, move.destination) for move in move_plan.moves]


def price(move_plan: Plan) -> tuple[int, int]:
    return len(move_plan.moves), sum(move.way.cost for move in move_plan.moves)


class PlanTest(unittest.TestCase):
    def assertPossible(self, now: Fleet, move_plan: Plan) -> list[Fleet]:
        """Each step has room when it is made, and nothing is moved that may not be."""
        self.assertTrue(all(move.instance.way for move in move_plan.moves))
        after = fleets.replayed(now, move_plan)
        self.assertTrue(after, moved(move_plan))
        return after


class SmallFleetsTest(PlanTest):
    def assertPlace(self, now: Fleet, wanted: Need, count: int) -> None:
        move_plan = plan.place(now, wanted, count)
        best = fleets.fewest(now, lambda then: fleets.places(then, wanted) >= count)
        self.assertTrue(move_plan.proven)
        self.assertEqual(best is not None, move_plan.reached)
        if best:
            self.assertEqual(best, price(move_plan))
            after = self.assertPossible(now, move_plan)
            self.assertGreaterEqual(max(fleets.places(state, wanted) for state in after), count)

    def assertDrained(self, now: Fleet, name: str) -> None:
        def is_empty(then: Fleet) -> bool:
            return all(one.host != name for one in then.instances)

        move_plan = plan.drain(now, name)
        best = fleets.fewest(now, is_empty, closed=name)
        self.assertTrue(move_plan.proven)
        self.assertEqual(best is not None, move_plan.reached)
        if best:
            self.assertEqual(best, price(move_plan))
            self.assertTrue(all(map(is_empty, self.assertPossible(now, move_plan))))
        self.assertNotIn(name, [move.destination for move in move_plan.moves])

    def assertGathered(self, now: Fleet, wanted: Need) -> None:
        move_plan = plan.defrag(now, wanted)
        most = fleets.most_places(now, wanted)
        self.assertTrue(move_plan.reached and move_plan.proven)
        self.assertEqual(
            fleets.fewest(now, lambda then: fleets.places(then, wanted) == most),
            price(move_plan),
        )
        after = self.assertPossible(now, move_plan)
        self.assertEqual(most, max(fleets.places(state, wanted) for state in after))

    def assertQuick(self, now: Fleet, wanted: Need, count: int) -> None:
        """Of any fleet, what the bounded search finds can be done."""
        with mock.patch.object(search, "MOST_HOSTS", 0):
            move_plan = plan.place(now, wanted, count)
        if move_plan.reached:
            after = self.assertPossible(now, move_plan)
            self.assertGreaterEqual(max(fleets.places(state, wanted) for state in after), count)
        if move_plan.proven:
            best = fleets.fewest(now, lambda then: fleets.places(then, wanted) >= count)
            self.assertEqual(best and best[0], len(move_plan.moves) if move_plan.reached else None)

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
            guest = instances[number]
            if left and guest.way and guest.gpus <= 2:
                left -= 1
                moved = instance(guest.name, "host0", guest.need, guest.way)
                instances[number] = moved
        made = [host(f"host{n}", (8, 0), vcpus=64) for n in range(hosts)]
        return fleets.fleet(made, instances), known

    def test_a_place_for_eight_of_eight(self) -> None:
        for seed in range(5):
            now, known = self.frayed(100, seed)
            wanted = need(8, vcpus=8)
            began = time.process_time()
            move_plan = plan.place(now, wanted, 1)
            self.assertLess(time.process_time() - began, 5)
            self.assertTrue(move_plan.reached)
            self.assertLessEqual(len(move_plan.moves), 1.2 * known)
            room = search.Room(now)
            for move in move_plan.moves:
                number = now.instances.index(move.instance)
                (spot,) = (
                    spot
                    for spot in room.spots_for(number)
                    if now.hosts[spot.host].name == move.destination
                )
                room.move(number, spot)
            self.assertEqual(1, sum(room.fitting(wanted, index) for index in range(100)))
            self.assertTrue(all(move.instance.way for move in move_plan.moves))


class WayTest(unittest.TestCase):
    def test_each_status(self) -> None:
        live, cold, none = Consent.LIVE, Consent.COLD, Consent.NONE
        for status, consent, is_live, keeps_disk, expected in (
            ("ACTIVE", live, True, True, Way.LIVE),
            ("ACTIVE", live, False, True, None),
            # It is not shut down where it need not be.
            ("ACTIVE", cold, True, True, Way.LIVE),
            ("ACTIVE", cold, False, True, Way.COLD),
            ("ACTIVE", none, True, True, None),
            ("SHUTOFF", live, False, True, Way.STOPPED),
            ("SHUTOFF", cold, True, True, Way.STOPPED),
            ("SHUTOFF", none, True, True, None),
            # A stopped container loses its disk.
            ("SHUTOFF", live, False, False, None),
            ("SHUTOFF", cold, False, False, Way.STOPPED),
            ("VERIFY_RESIZE", cold, True, True, None),
            ("PAUSED", cold, True, True, None),
        ):
            with self.subTest(status, consent=consent, live=is_live, keeps_disk=keeps_disk):
                way, why = permitted_way(status, consent, live=is_live, keeps_disk=keeps_disk)
                self.assertIs(expected, way)
                self.assertEqual(way is None, bool(why), "a reason, where it stays")


class LastSetTest(unittest.TestCase):
    """Which modules of a board an instance has of which its host does not say them"""

    def on(self, *modules: int, known: bool = True) -> Instance:
        one = instance(str(modules), "host1", need(len(modules)))
        return dataclasses.replace(one, sets=((0, modules),) if known else ())

    def sets(self, taken: set[int], *there: Instance) -> list[ModulesByGroup]:
        (group,) = host("host1", (8, 0)).groups
        group = dataclasses.replace(group, board=card_sets.h100().with_taken(taken))
        return [guest.sets for guest in with_last_set(there, [group])]

    def test_only_where_one_is_left(self) -> None:
        known, last = self.on(1, 3), self.on(2, 4, known=False)
        self.assertEqual([known.sets, ((0, (2, 4)),)], self.sets({1, 2, 3, 4}, known, last))
        # One more is ill, or there are two of whom nothing is known.
        self.assertEqual([known.sets, ()], self.sets({1, 2, 3, 4, 8}, known, last))
        self.assertEqual([(), ()], self.sets({1, 2, 3, 4}, last, last))

    def test_nothing_is_proven_of_what_is_not_known(self) -> None:
        strange = [self.on(module, known=False) for module in (1, 5)]
        now = fleets.fleet([host("host1", (8, 0)), host("host2", (2, 0))], strange)
        (board, plain), (group,) = now.hosts, now.hosts[0].groups
        group = dataclasses.replace(group, board=card_sets.h100().with_taken({1, 5}))
        hosts = (dataclasses.replace(board, groups=(group,)), plain)
        move_plan = plan.place(dataclasses.replace(now, hosts=hosts), need(4), 1)
        self.assertEqual((False, False), (move_plan.reached, move_plan.proven))


def price_of(who: tuple[Instance, ...], costs: dict[str, int]) -> tuple[int, int, int]:
    return len(who), sum(costs[guest.uuid] for guest in who), sum(guest.gpus for guest in who)


def without(now: Fleet, who: tuple[Instance, ...]) -> Fleet:
    left = tuple(guest for guest in now.instances if guest not in who)
    return fleets.fleet(fleets.emptied(now).hosts, left)


def fewest(
    now: Fleet, wanted: Need, count: int, costs: dict[str, int]
) -> tuple[int, int, int] | None:
    """The price of the best victims, found by trying all; ``None`` where all of them are too few"""
    eligible = [guest for guest in now.instances if guest.uuid in costs]
    for size in range(len(eligible) + 1):
        prices = [
            price_of(who, costs)
            for who in itertools.combinations(eligible, size)
            if fleets.places(without(now, who), wanted) >= count
        ]
        if prices:
            return min(prices)
    return None


class VictimsTest(unittest.TestCase):
    def test_no_choice_is_better(self) -> None:
        """Nor does it ever have one who may not be chosen."""
        reached = 0
        for seed in range(FLEETS):
            dice = random.Random(seed)
            now, wanted, count = fleets.small(dice)
            costs = {e.uuid: dice.randint(0, 2) for e in now.instances if dice.random() < 0.7}
            with self.subTest(seed=seed):
                choice = victims.choose(now, wanted, count, costs)
                self.assertTrue(choice.proven)
                self.assertLessEqual({victim.uuid for victim in choice.victims}, costs.keys())
                if choice.places < count:
                    self.assertIsNone(fewest(now, wanted, count, costs))
                    count = choice.places
                self.assertEqual(fewest(now, wanted, count, costs), price_of(choice.victims, costs))
                then = victims.after(now, wanted, choice)
                gone = without(now, choice.victims)
                self.assertEqual(gone.instances, then.instances)
                left = plan.places(then, wanted)
                self.assertLessEqual(left, fleets.places(gone, wanted) - count)
                reached += bool(choice.victims)
        self.assertGreater(reached, FLEETS / 10)

    def test_the_bounded_search_has_none_who_could_stay(self) -> None:
        for seed in range(FLEETS // 5):
            dice = random.Random(seed)
            now, wanted, count = fleets.small(dice)
            costs = {guest.uuid: 0 for guest in now.instances}
            with self.subTest(seed=seed), mock.patch.object(victims, "MOST_LOOKS", 0):
                choice = victims.choose(now, wanted, count, costs)
                best = fewest(now, wanted, count, costs)
                self.assertEqual(best is not None, choice.places == count)
                for victim in choice.victims:
                    others = tuple(one for one in choice.victims if one != victim)
                    self.assertLess(fleets.places(without(now, others), wanted), choice.places)
