# SPDX-License-Identifier: Apache-2.0
"""Room on boards with NVSwitches; test_plan has them in its fleets, too."""

from __future__ import annotations

import dataclasses
import unittest

from nova_gpu.core.sets.set_traits import Board
from osc_gpu.fleet.planning import fleet, plan, victims
from osc_gpu.fleet.planning.fleet import Fleet, Instance, Way
from tests.fixtures.partitions import H100
from tests.unit.osc_gpu.fleet import fleets
from tests.unit.osc_gpu.fleet.fleets import host, instance, need


def on(modules: set[int], way: Way | None = Way.COLD) -> Instance:
    """One at host1 that has them of its board"""
    one = instance("-".join(map(str, sorted(modules))), "host1", need(len(modules)), way)
    return dataclasses.replace(one, sets=((0, tuple(sorted(modules))),))


def fleet_of(*instances: Instance, elsewhere: int = 0) -> Fleet:
    """host1 has a board of H100, and host2 so many cards that are on none."""
    board, plain = host("host1", (8, 0)), host("host2", (elsewhere, 0))
    (group,) = board.groups
    group = dataclasses.replace(group, board=Board(H100, frozenset()))
    hosts = [dataclasses.replace(board, groups=(group,)), plain]
    return fleets.fleet(hosts, instances)


class BoardsTest(unittest.TestCase):
    def test_what_is_free_is_no_set(self) -> None:
        now = fleet_of(on({1}), on({5}), elsewhere=1)
        self.assertEqual((0, 1), (plan.places(now, need(4)), plan.places(now, need(1)) - 6))
        found = plan.place(now, need(4), 1)
        self.assertEqual(1, len(found.moves))
        self.assertTrue(found.reached and found.proven)
        self.assertEqual(1, plan.places_after(now, need(4), found))

    def test_the_one_whose_move_makes_a_set(self) -> None:
        """Of four halves of pairs those of one half of the board"""
        now = fleet_of(on({1}), on({2}), on({5, 7}), on({6}), elsewhere=2)
        found = plan.place(now, need(4), 1)
        self.assertEqual({"1", "2"}, {each.instance.name for each in found.moves})
        chosen = victims.choose(now, need(4), 1, dict.fromkeys(("1", "2", "5-7", "6"), 1))
        self.assertEqual({"1", "2"}, {each.name for each in chosen.victims})
        then = victims.after(now, need(4), chosen)
        self.assertEqual(0, plan.places(then, need(4)))
        (left,) = (group.board for group in then.hosts[0].groups)
        assert left
        self.assertEqual(frozenset(range(1, 9)) - {8}, left.taken)

    def test_a_drained_board_is_whole(self) -> None:
        now = fleet_of(on({1}), on({5, 7}), elsewhere=3)
        found = plan.drain(now, "host1")
        self.assertEqual((1, 1), (plan.places_after(now, need(8), found), found.reached))

    def test_nobody_knows_which_it_has(self) -> None:
        """What it leaves makes no set, and no more is said than that none was found."""
        strange = [dataclasses.replace(on({module}), sets=()) for module in (1, 5)]
        now = fleet_of(*strange, elsewhere=2)
        (board, plain), (group,) = now.hosts, now.hosts[0].groups
        group = dataclasses.replace(group, board=Board(H100, frozenset({1, 5})))
        hosts = (dataclasses.replace(board, groups=(group,)), plain)
        found = plan.place(dataclasses.replace(now, hosts=hosts), need(4), 1)
        self.assertEqual((False, False), (found.reached, found.proven))


class LastSetTest(unittest.TestCase):
    def sets(self, taken: set[int], *there: Instance) -> list[fleet.Sets]:
        (group,) = fleet_of().hosts[0].groups
        group = dataclasses.replace(group, board=Board(H100, frozenset(taken)))
        return [each.sets for each in fleet.with_last_set(there, [group])]

    def test_only_one_is_left(self) -> None:
        known, last = on({1, 3}), dataclasses.replace(on({2, 4}), sets=())
        self.assertEqual([known.sets, on({2, 4}).sets], self.sets({1, 2, 3, 4}, known, last))

    def test_it_could_have_others(self) -> None:
        known, last = on({1, 3}), dataclasses.replace(on({2, 4}), sets=())
        # One more is ill
        self.assertEqual([known.sets, ()], self.sets({1, 2, 3, 4, 8}, known, last))
        self.assertEqual([(), ()], self.sets({1, 2, 3, 4}, last, last))


if __name__ == "__main__":
    unittest.main()
