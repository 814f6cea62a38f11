# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import subprocess
import sys
import unittest

from nova_gpu.virt.usage.records import Records
from nova_gpu.virt.usage.snapshot import Assignment, Claim, Snapshot, State
from tests.fixtures import cards

A, B, C, D, E, F = cards.addresses(*(f"0000:0{number}:00.0" for number in range(1, 7)))
CLAIM = Claim(0.0, 60.0, set())


def one(device: object) -> Assignment:
    return Assignment("one", frozenset({device}))


class StateTest(unittest.TestCase):
    """Of a device that is in several states the first one counts."""

    def setUp(self) -> None:
        self.usage = Snapshot(
            claims={B: CLAIM},
            starting=(one(D),),
            domains={"one": frozenset({D, E})},
            kept={"one": one(C)},
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
        self.assertEqual(expected, {each: self.usage.state_of(each) for each in expected})

    def test_free(self) -> None:
        self.assertIsNone(Snapshot().state_of(A))

    def test_taken_is_what_is_in_a_state_but_dirty(self) -> None:
        self.assertEqual({B, C, D, E, F}, self.usage.taken())

    def test_wherever_a_start_is(self) -> None:
        states = [("asking", State.STARTING), ("starting", State.STARTING)]
        for name, state in (*states, ("unseen", State.IN_USE)):
            with self.subTest(name):
                self.assertEqual(state, Snapshot(**{name: (one(A),)}).state_of(A))

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
