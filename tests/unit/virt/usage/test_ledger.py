# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import subprocess
import sys
import unittest
from collections.abc import Callable, Collection, Mapping
from typing import Any
from unittest import mock

from nova_gpu.core import exception
from nova_gpu.core.model import DeliveryMode, GroupKey, PciAddress
from nova_gpu.virt.usage.ledger import Assignment, Claim, Ledger, Snapshot, State
from nova_gpu.virt.usage.records import Records
from tests.fixtures import cards

A, B, C, D, E, F = cards.addresses(*(f"0000:0{number}:00.0" for number in range(1, 7)))
KEY = GroupKey("10de", "1091", DeliveryMode.LXC)


class LedgerTest(unittest.TestCase):
    def setUp(self) -> None:
        self.ledger = Ledger()

    def test_named_by_a_domain(self) -> None:
        self.ledger.saw_domains({"one": frozenset({A}), "two": frozenset({B})})
        self.assertEqual({A, B}, self.ledger.now.taken())
        self.ledger.saw_domains({"two": frozenset({B})})
        self.assertEqual({B}, self.ledger.now.taken())

    def test_had_by_an_instance(self) -> None:
        self.ledger.saw_domains({"one": frozenset({A})})
        with self.ledger.hold("one", frozenset({B}), dict):
            pass
        self.assertEqual({A, B}, self.ledger.now.had_by("one"))
        self.assertEqual(set(), self.ledger.now.had_by("two"))

    def test_used_until_it_is_cleaned(self) -> None:
        """Named by a domain or given to a start; that a start held it alone is nothing."""
        self.ledger.saw_domains({"one": frozenset({A})})
        with self.ledger.hold("two", frozenset({B, C}), dict):
            self.ledger.was_used([B])
        self.ledger.saw_domains({})
        self.assertEqual({A, B}, self.ledger.now.used)
        with self.ledger.clean(A):
            self.assertEqual({A}, self.ledger.now.taken())
            self.ledger.cleaned(A)
        self.assertEqual({B}, self.ledger.now.used)

    def test_used_before_this_service(self) -> None:
        """What the database counts first may be a guest's of before, what it counts later not."""
        self._count({"one": frozenset({("here", str(A))})})
        self._count({"one": frozenset({("here", str(A))}), "two": frozenset({("here", str(B))})})
        self.assertEqual({A}, self.ledger.now.used)

    def test_left(self) -> None:
        self._count({"one": frozenset({("here", str(A))})})
        self.ledger.saw_domains({"two": frozenset({B})})
        self.ledger.was_used([C])
        self.assertEqual({C}, self.ledger.now.left())
        self.ledger.saw_domains({})
        self._count({})
        self.assertEqual({A, B, C}, self.ledger.now.left())

    def test_what_was_read_of_a_card_is_void_when_it_is_clean(self) -> None:
        self._count({"one": frozenset({("here", str(A)), ("here", str(B))})})
        with self.ledger.hold("one", frozenset({A, B}), dict):
            pass
        self.ledger.cleaned(A)
        self.assertEqual({B}, self.ledger.now.started())
        self.assertEqual({B}, self.ledger.now.counted())

    def test_kept_while_it_is_rebuilt(self) -> None:
        here: dict[str, frozenset[tuple[str, str]]] = {"one": frozenset(), "two": frozenset()}
        for end in ("started", "gone"):
            with self.subTest(end=end):
                self.ledger.keep("one", frozenset({A}))
                self._count(here)
                self.assertEqual({A}, self.ledger.now.taken())
                kept = self.ledger.now.kept_by("one")
                self.assertEqual({A}, kept)
                if end == "started":
                    with self.ledger.hold("one", frozenset(), dict, kept):
                        self.assertEqual({A}, self.ledger.now.taken())
                else:
                    self._count({"two": frozenset()})
                self.assertEqual(set(), self.ledger.now.taken())

    def test_kept_from_within_a_hold_to_the_end_of_the_next(self) -> None:
        with self.ledger.hold("one", frozenset({A}), dict):
            self.ledger.keep("one", frozenset({A}))
        self.assertEqual({A}, self.ledger.now.taken())
        self.assertEqual({A}, self.ledger.now.had_by("one"))
        with self.ledger.hold("one", frozenset(), dict, frozenset({A})):
            pass
        self.assertEqual(set(), self.ledger.now.taken())

    def test_kept_until_it_is_let_go(self) -> None:
        self.ledger.keep("one", frozenset({A}))
        self.ledger.let_go("one")
        self.ledger.let_go("one")
        self.assertEqual(set(), self.ledger.now.taken())

    def test_kept_while_the_database_is_read(self) -> None:
        """Before it was asked nobody had claimed them."""
        self._count({}, lambda: self.ledger.keep("one", frozenset({A})))
        self.assertEqual({A}, self.ledger.now.taken())
        self._count({})
        self.assertEqual(set(), self.ledger.now.taken())

    def test_a_start_with_anothers_cards_makes_them_nobodys_of_ours(self) -> None:
        self._count({"one": frozenset()})
        self.ledger.saw_domains({"one": frozenset({A})})
        with self.ledger.hold("one", frozenset(), dict, frozenset({A})):
            self.assertEqual({A: "one"}, self.ledger.now.strangers())
        self.assertEqual(set(), self.ledger.now.started())

    def test_counted(self) -> None:
        """What another host's provider calls A may be an instance's here for all anybody knows."""
        self._count(
            {"one": frozenset({("here", str(A))}), "two": frozenset({("elsewhere", str(B))})}
        )
        self.assertEqual({A, B}, self.ledger.now.counted())

    def test_the_hold_takes_the_place_of_what_was_handed_out(self) -> None:
        self.ledger.claim({A, B}, (), set(), 60)
        with self.ledger.hold("one", frozenset({A}), dict):
            self.assertEqual({A, B}, self.ledger.now.taken())
        self.assertEqual({B}, self.ledger.now.taken())

    def test_a_refused_hold_gives_back_what_was_handed_out(self) -> None:
        self.ledger.claim({A, B}, (), set(), 60)
        named = {"stranger": frozenset({A})}
        with (
            self.assertRaises(exception.DeviceUnavailable),
            self.ledger.hold("one", frozenset({A, B}), lambda: named),
        ):
            self.fail("held")
        self.assertEqual(set(), self.ledger.now.taken())
        self.assertEqual(set(), self.ledger.now.started())

    def test_stranger(self) -> None:
        self.ledger.saw_domains({"one": frozenset({A}), "stranger": frozenset({B})})
        self._count({"one": frozenset({("group", str(A))})})
        self.assertEqual({B: "stranger"}, self.ledger.now.strangers())

    def test_nobody_is_a_stranger_before_the_database_was_read(self) -> None:
        self.ledger.saw_domains({"one": frozenset({A}), "two": frozenset({B})})
        with self.ledger.hold("two", frozenset({B}), dict):
            pass
        self.assertEqual({}, self.ledger.now.strangers())
        self.assertEqual({A: "one"}, self.ledger.now.unjudged())
        self._count({})
        self.assertEqual({A: "one", B: "two"}, self.ledger.now.strangers())
        self.assertEqual({}, self.ledger.now.unjudged())

    def test_an_instances_domain_with_another_card_is_a_stranger_there(self) -> None:
        self.ledger.saw_domains({"one": frozenset({A, B})})
        self._count({"one": frozenset({("group", str(A))})})
        self.assertEqual({B: "one"}, self.ledger.now.strangers())

    def test_what_was_just_started_is_no_stranger(self) -> None:
        self._count({})
        self._start("one", A)
        self.assertEqual({}, self.ledger.now.strangers())
        self.assertEqual({A}, self.ledger.now.started())
        self._count({"one": frozenset({("group", str(A))})})
        self.assertEqual(set(), self.ledger.now.started())
        self.assertEqual({}, self.ledger.now.strangers())

    def test_what_was_started_while_the_database_was_read_stays(self) -> None:
        self.ledger.saw_domains({"one": frozenset({A})})
        for _ in range(2):  # the second time it was started before as well
            self._count({}, lambda: self._start("one", A))
            self.assertEqual({A}, self.ledger.now.started())
            self.assertEqual({}, self.ledger.now.strangers())

    def test_what_is_being_started_stays(self) -> None:
        with self.ledger.hold("one", frozenset({A}), dict):
            self._count({})
            self.assertEqual({A}, self.ledger.now.started())
        self._count({})
        self.assertEqual(set(), self.ledger.now.started())

    def test_what_is_saved_when_the_task_ends_stays_until_then(self) -> None:
        """An instance that is unshelved; what it had before is still in the database."""
        self._start("one", A)
        for before in (frozenset({("group", str(B))}), frozenset[tuple[str, str]]()):
            self._count({"one": before}, busy=frozenset({"one"}))
            self.assertEqual({A}, self.ledger.now.started())
            self.assertEqual({}, self.ledger.now.strangers())
        self._count({"one": frozenset({("group", str(A))})}, busy=frozenset({"one"}))
        self.assertEqual(set(), self.ledger.now.started())
        self.assertEqual({}, self.ledger.now.strangers())

    def test_what_was_started_and_is_counted_nowhere_is_a_strangers(self) -> None:
        """It was deleted while the service was away, or is on another host, or has no such GPU."""
        for counted in ({}, {"one": frozenset[tuple[str, str]]()}):
            with self.subTest(counted=counted):
                self._start("one", A)
                self._count(counted)
                self.assertEqual(set(), self.ledger.now.started())
                self.assertEqual({A: "one"}, self.ledger.now.strangers())

    def test_on_its_way_back_from_another_host_it_is_no_stranger(self) -> None:
        self.ledger.saw_domains({"one": frozenset({A})})
        self._count({}, returning=frozenset({"one"}))
        self.assertEqual({}, self.ledger.now.strangers())
        self._count({})
        self.assertEqual({A: "one"}, self.ledger.now.strangers())

    def test_handed_out_is_free_where_no_instance_is_busy(self) -> None:
        """Whoever it was handed out to is started or has failed."""
        self.ledger.claim({A}, (), set(), 60)
        self._count({}, busy=frozenset({"one"}))
        self.assertEqual({A}, self.ledger.now.taken())
        self._count({})
        self.assertEqual(set(), self.ledger.now.taken())

    def test_handed_out_while_the_database_is_read(self) -> None:
        self._count({}, lambda: self.ledger.claim({A}, (), set(), 60))
        self.assertEqual({A}, self.ledger.now.taken())

    def test_the_database_is_asked_about_domains_with_gpus(self) -> None:
        self.ledger.saw_domains({"one": frozenset({A}), "two": frozenset()})
        asked: list[str] = []

        def read(guests: Collection[str]) -> Records:
            asked.extend(guests)
            return Records({})

        self.ledger.read_records(read)
        self.assertEqual(["one"], asked)

    def test_database_that_does_not_answer_changes_nothing(self) -> None:
        self._count({"one": frozenset({("group", str(A))})})
        self.assertRaises(OSError, self._count, {}, mock.Mock(side_effect=OSError))
        self.assertEqual({(KEY, A)}, self.ledger.now.recorded({"group": KEY}))

    def test_recorded_leaves_out_other_hosts_providers(self) -> None:
        self._count({"one": frozenset({("group", str(A)), ("elsewhere", str(B))})})
        self.assertEqual({(KEY, A)}, self.ledger.now.recorded({"group": KEY}))

    def _start(self, uuid: str, address: PciAddress) -> None:
        with self.ledger.hold(uuid, frozenset({address}), dict):
            self.ledger.saw_domains({uuid: frozenset({address})})

    def _count(
        self,
        counted: Mapping[str, frozenset[tuple[str, str]]],
        meanwhile: Callable[[], object] = lambda: None,
        **kwargs: Any,
    ) -> None:
        """The database is read; *meanwhile* is what happens before it has answered."""

        def read(guests: Collection[str]) -> Records:
            meanwhile()
            return Records(counted, **kwargs)

        self.ledger.read_records(read)


class ReachedTest(unittest.TestCase):
    """What a container that runs can open, beside what is its own"""

    def setUp(self) -> None:
        self.ledger = Ledger()
        reached = {"one": frozenset({B}), "two": frozenset[PciAddress]()}
        self.ledger.saw_domains({"one": frozenset({A, B}), "two": frozenset({C})}, reached)

    def test_nobody_elses(self) -> None:
        self.assertEqual({A, B, C}, self.ledger.now.taken())
        self.assertEqual({"one": {B}}, self.ledger.now.reached)

    def test_not_kept_for_its_next_start(self) -> None:
        self.assertEqual({A}, self.ledger.now.kept_by("one"))

    def test_cleaned_when_it_is_gone(self) -> None:
        self.assertEqual({A, B}, self.ledger.now.had_by("one"))
        self.ledger.saw_domains({"two": frozenset({C})})
        self.assertEqual({A, B}, self.ledger.now.left())
        self.assertEqual({}, self.ledger.now.reached)

    def test_between_two_domains(self) -> None:
        """A start that waits for libvirt's word, or has it; a rebuild; a resize that is reverted"""

        def look() -> dict[str, frozenset[PciAddress]]:
            self.assertTrue(self.ledger.now.is_between("two"))
            return {}

        with self.ledger.hold("two", frozenset({C}), look):
            self.assertTrue(self.ledger.now.is_between("two"))
        self.assertFalse(self.ledger.now.is_between("two"))
        self.ledger.keep("one", [A])
        self.assertTrue(self.ledger.now.is_between("one"))
        self.ledger.let_go("one")
        self.assertFalse(self.ledger.now.is_between("one"))
        self.ledger.read_records(lambda guests: Records({}, returning=frozenset({"one"})))
        self.assertTrue(self.ledger.now.is_between("one"))


CLAIM = Claim(0.0, 60.0, set())


def one(device: object) -> Assignment:
    return Assignment("one", frozenset({device}))


class StateTest(unittest.TestCase):
    """A device may be in several states at once."""

    def setUp(self) -> None:
        self.usage = Snapshot(
            claims={B: CLAIM},
            starting=(one(D),),
            domains={"one": frozenset({D, E})},
            moving={"one": one(C)},
            used=frozenset({A, C, D, E, F}),
            cleaning=frozenset({F}),
        )

    def test_each(self) -> None:
        expected = {
            A: State.DIRTY,
            B: State.CLAIMED,
            C: State.MOVING,
            D: State.STARTING,
            E: State.IN_USE,
            F: State.CLEANING,
        }
        for each, state in expected.items():
            with self.subTest(state):
                self.assertIn(each, self.usage.devices(state))

    def test_free(self) -> None:
        self.assertEqual(set(), set().union(*(Snapshot().devices(state) for state in State)))

    def test_taken_is_what_is_in_a_state_but_dirty(self) -> None:
        self.assertEqual({B, C, D, E, F}, self.usage.taken())

    def test_wherever_a_start_is(self) -> None:
        states = [("asking", State.STARTING), ("starting", State.STARTING)]
        for name, state in (*states, ("unseen", State.IN_USE)):
            with self.subTest(name):
                self.assertEqual({A}, Snapshot(**{name: (one(A),)}).devices(state))

    def test_held_is_what_libvirt_was_asked_about(self) -> None:
        usage = Snapshot(asking=(one(A),), starting=(one(B), Assignment("two", frozenset({C}))))
        self.assertEqual({B}, usage.held_for("one"))
        self.assertEqual(
            [True, True, False], [usage.is_starting(each) for each in ("one", "two", "three")]
        )

    def test_left_is_dirty_and_no_instances(self) -> None:
        counted = {"one": frozenset({("provider", str(A))})}
        self.assertEqual({A}, self.usage.left())
        self.assertEqual(set(), dataclasses.replace(self.usage, records=Records(counted)).left())

    def test_nobody_changes_one(self) -> None:
        with self.assertRaises(dataclasses.FrozenInstanceError):
            self.usage.used = frozenset()


class PurityTest(unittest.TestCase):
    def test_nothing_of_nova_is_imported(self) -> None:
        code = (
            "import nova_gpu.virt.usage.ledger, sys;"
            "print([name for name in sys.modules if name.partition('.')[0] == 'nova'])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
        self.assertEqual("[]", done.stdout.decode().strip())
