# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import unittest
from typing import Any

from tests.crash import truths
from tests.crash.truths import Guest, Instance

A, B, C, D = (f"0000:0{bus}:00.0" for bus in (4, 5, 8, 9))
ONE, TWO, MOVE = "one", "two", "move"


def cards(*names: str) -> frozenset[str]:
    return frozenset(names)


# One has A and B; C and D are free.
_FINE = truths.HostState(
    cards=cards(A, B, C, D),
    guests={ONE: Guest(True, cards(A, B))},
    instances={ONE: Instance("active", None, 2, cards(A, B))},
    allocated={ONE: 2},
    total=4,
    reserved=0,
    free=cards(C, D),
)


class DifferencesTest(unittest.TestCase):
    def kinds(self, **changes: Any) -> set[str]:
        found = truths.differences(dataclasses.replace(_FINE, **changes))
        return {each.partition(":")[0] for each in found}

    def test_none(self) -> None:
        self.assertEqual(set(), self.kinds())

    def test_two_guests_with_one_card(self) -> None:
        guests = {**_FINE.guests, TWO: Guest(False, cards(B))}
        self.assertEqual({"shared", "leaked"}, self.kinds(guests=guests))

    def test_two_instances_with_one_card(self) -> None:
        other = Instance("resized", None, 1, cards(C), kept=cards(A))
        self.assertEqual(
            {"shared"},
            self.kinds(
                instances={**_FINE.instances, TWO: other},
                allocated={ONE: 2, TWO: 2},
                free=cards(D),
            ),
        )

    def test_active_without_a_guest(self) -> None:
        self.assertEqual({"without"}, self.kinds(guests={}))
        self.assertEqual({"without"}, self.kinds(guests={ONE: Guest(False, cards(A, B))}))

    def test_active_with_others_than_its_own(self) -> None:
        self.assertEqual({"without"}, self.kinds(guests={ONE: Guest(True, cards(A))}))

    def test_with_fewer_than_it_asked_for(self) -> None:
        instance = Instance("active", None, 3, cards(A, B))
        self.assertEqual({"without"}, self.kinds(instances={ONE: instance}))

    def test_nothing_is_said_of_one_that_is_in_a_task(self) -> None:
        instance = Instance("active", "rebooting_hard", 2, cards(A, B))
        self.assertEqual(set(), self.kinds(instances={ONE: instance}, guests={}))

    def test_a_domain_of_no_instance(self) -> None:
        guests = {**_FINE.guests, TWO: Guest(True, cards(D))}
        self.assertEqual({"leaked"}, self.kinds(guests=guests, free=cards(C)))

    def test_an_allocation_of_no_instance(self) -> None:
        self.assertEqual({"leaked"}, self.kinds(allocated={ONE: 2, MOVE: 2}))

    def test_a_card_of_nobody(self) -> None:
        self.assertEqual({"lost"}, self.kinds(free=cards(C)))
        self.assertEqual(set(), self.kinds(free=cards(C), reserved=1))

    def test_a_card_in_use_on_offer(self) -> None:
        self.assertEqual({"offered"}, self.kinds(free=cards(B, C, D)))

    def test_the_other_side_of_a_move_on_offer(self) -> None:
        moving = Instance("resized", None, 2, cards(A, B), kept=cards(D))
        self.assertEqual({"offered"}, self.kinds(instances={ONE: moving}, allocated={ONE: 3}))

    def test_more_in_placement_than_on_the_host(self) -> None:
        self.assertEqual({"offered"}, self.kinds(total=5))
        self.assertEqual({"offered"}, self.kinds(cards=cards(A, B, C)))

    def test_placement_counts_another_number(self) -> None:
        self.assertEqual({"miscounted"}, self.kinds(allocated={ONE: 1}))
        self.assertEqual({"miscounted"}, self.kinds(allocated={ONE: 3}))
        self.assertEqual({"miscounted"}, self.kinds(allocated={}))
