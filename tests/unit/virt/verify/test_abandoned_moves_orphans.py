# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import fixtures
from oslotest import base

from nova_gpu.virt.usage.records import Records
from nova_gpu.virt.verify import abandoned_moves

ONE, TWO = "group-1", "group-2"
INSTANCE, MIGRATION = "instance", "migration"


class Placement:
    """What is asked of Nova's report client"""

    def __init__(self) -> None:
        self.consumers: dict[str, set[str]] = {ONE: {INSTANCE}, TWO: set()}
        self.asked: list[str] = []
        self.answers = True

    def get_allocations_for_resource_provider(self, context: Any, uuid: str) -> Any:
        self.asked.append(uuid)
        if not self.answers:
            raise ConnectionError("no route")
        return SimpleNamespace(allocations={each: {} for each in self.consumers[uuid]})

    def delete_allocation_for_instance(
        self, context: Any, consumer: str, consumer_type: str
    ) -> None:
        for consumers in self.consumers.values():
            consumers.discard(consumer)


class OrphansTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.placement = Placement()
        self.ended: str | None = None
        self.useFixture(fixtures.MockPatchObject(abandoned_moves, "ended", lambda *_: self.ended))
        self.orphans = abandoned_moves.Orphans()
        self.wrong = set[str]()
        self.counted = {INSTANCE: frozenset({(ONE, "card")}), "without GPUs": frozenset()}
        self.settled = frozenset(self.counted)
        self.has_moves = False

    def agrees(self, provider_uuid: str, allocations: Mapping[str, object]) -> bool:
        return provider_uuid not in self.wrong

    def asked(self, *providers: str) -> list[str]:
        self.placement.asked.clear()
        records = Records(
            dict(self.counted), settled=frozenset(self.settled), has_moves=self.has_moves
        )
        self.orphans.release(self.placement, providers or (ONE, TWO), records, self.agrees)
        return sorted(self.placement.asked)

    def assertSettled(self) -> None:
        self.assertEqual([], self.asked())

    def test_no_question_while_nothing_changes(self) -> None:
        self.assertEqual([ONE, TWO], self.asked())
        self.assertSettled()
        del self.counted["without GPUs"]
        self.settled = frozenset(self.counted)
        self.assertSettled()

    def test_an_allocation_that_something_else_changed(self) -> None:
        self.asked()
        now = time.monotonic()
        for seconds, questions in ((299, []), (301, [ONE, TWO])):
            later = fixtures.MonkeyPatch("time.monotonic", lambda s=seconds: now + s)
            with self.subTest(seconds=seconds), later:
                self.assertEqual(questions, self.asked())

    def test_a_wrong_allocation_is_read_until_it_is_right(self) -> None:
        self.wrong.add(TWO)
        self.assertEqual([ONE, TWO], self.asked())
        self.assertEqual([ONE, TWO], self.asked())
        self.wrong.clear()
        self.assertEqual([ONE, TWO], self.asked())
        self.assertSettled()

    def test_changed_records(self) -> None:
        self.asked()
        self.counted[INSTANCE] = frozenset({(ONE, "card"), (TWO, "another")})
        self.assertEqual([ONE, TWO], self.asked())
        self.settled = frozenset()  # its rebuild fails, for which Nova deletes the allocation
        self.assertEqual([ONE, TWO], self.asked())
        self.has_moves = True
        self.assertEqual([ONE, TWO], self.asked())
        self.assertSettled()

    def test_an_instance_that_goes_may_leave_one_behind(self) -> None:
        self.asked()
        self.placement.consumers[ONE] = {MIGRATION}
        self.ended = "its instance is deleted"
        del self.counted[INSTANCE]
        self.assertEqual([ONE, TWO], self.asked())
        self.assertEqual(set(), self.placement.consumers[ONE])

    def test_placement_that_did_not_answer_is_asked_again(self) -> None:
        self.placement.answers = False
        self.asked()
        self.placement.answers = True
        self.assertEqual([ONE, TWO], self.asked())
        self.assertSettled()

    def test_a_provider_that_is_new(self) -> None:
        self.asked(ONE)
        self.assertEqual([ONE, TWO], self.asked())

    def test_a_move_is_asked_about_until_it_has_ended(self) -> None:
        """The records say nothing of one that ends in the database."""
        self.placement.consumers[ONE].add(MIGRATION)
        self.assertEqual([ONE, TWO], self.asked())
        self.assertEqual([ONE, TWO], self.asked())
        self.ended = "it is confirmed"
        self.assertEqual([ONE, TWO], self.asked())
        self.assertEqual({INSTANCE}, self.placement.consumers[ONE])
        self.assertEqual([ONE, TWO], self.asked())
        self.assertSettled()

    def test_one_that_cannot_be_read(self) -> None:
        """It keeps neither the next one nor the instances' allocations from being corrected."""
        unreadable, wrong = "an unreadable migration", "a migration that ends"
        compared: list[str] = []

        def ended(context: object, consumer: str) -> str:
            if consumer == unreadable:
                raise ValueError("date value out of range")
            return "it is confirmed"

        def agrees(provider_uuid: str, allocations: Mapping[str, object]) -> bool:
            compared.append(provider_uuid)
            return True

        self.placement.consumers[ONE] |= {unreadable, wrong}
        with fixtures.MockPatchObject(abandoned_moves, "ended", ended):
            self.orphans.release(self.placement, {ONE}, Records(self.counted), agrees)
        self.assertEqual({INSTANCE, unreadable}, self.placement.consumers[ONE])
        self.assertEqual([ONE], compared)
