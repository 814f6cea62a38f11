# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import fixtures
from oslotest import base

from nova_gpu.virt.verify import abandoned_moves

ROOT, ONE, TWO = "root", "group-1", "group-2"
INSTANCE, MIGRATION = "instance", "migration"


class Placement:
    """What is asked of Nova's report client; an allocation that changes counts a provider on."""

    def __init__(self) -> None:
        self.consumers: dict[str, set[str]] = {ROOT: {INSTANCE}, ONE: {INSTANCE}, TWO: set()}
        self.generation_of = {ROOT: 7, ONE: 3, TWO: 1}
        self.asked: list[str] = []

    def get_providers_in_tree(self, context: Any, uuid: str) -> list[dict[str, Any]]:
        assert uuid in self.generation_of
        self.asked.append("tree")
        return [{"uuid": u, "generation": n} for u, n in self.generation_of.items()]

    def get_allocations_for_resource_provider(self, context: Any, uuid: str) -> Any:
        self.asked.append(uuid)
        return SimpleNamespace(allocations={each: {} for each in self.consumers[uuid]})

    def delete_allocation_for_instance(
        self, context: Any, consumer: str, consumer_type: str
    ) -> None:
        for uuid, consumers in self.consumers.items():
            if consumer in consumers:
                consumers.remove(consumer)
                self.generation_of[uuid] += 1

    def add(self, uuid: str, consumer: str) -> None:
        self.consumers[uuid].add(consumer)
        self.generation_of[uuid] += 1


class OrphansTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.placement = Placement()
        self.ended: str | None = None
        self.useFixture(fixtures.MockPatchObject(abandoned_moves, "ended", lambda *_: self.ended))
        self.looked = abandoned_moves.Orphans()
        self.wrong = set[str]()
        self.counted = {INSTANCE: {ONE}, "without GPUs": set[str]()}

    def agrees(self, provider_uuid: str, allocations: Mapping[str, object]) -> bool:
        return provider_uuid not in self.wrong

    def asked(self) -> list[str]:
        self.placement.asked.clear()
        self.looked.release(self.placement, {ONE, TWO}, dict(self.counted), self.agrees)
        return sorted(self.placement.asked)

    def test_one_question_while_nothing_changes(self) -> None:
        self.assertEqual([ONE, TWO, "tree"], self.asked())
        self.assertEqual(["tree"], self.asked())
        del self.counted["without GPUs"]
        self.assertEqual(["tree"], self.asked())

    def test_what_is_not_counted_as_it_is_had_is_looked_at_again(self) -> None:
        self.wrong.add(TWO)
        self.assertEqual([ONE, TWO, "tree"], self.asked())
        self.assertEqual([TWO, "tree"], self.asked())
        self.wrong.clear()
        self.assertEqual([TWO, "tree"], self.asked())
        self.assertEqual(["tree"], self.asked())

    def test_what_has_changed_since_the_last_look(self) -> None:
        self.asked()
        self.placement.add(TWO, INSTANCE)
        self.assertEqual([TWO, "tree"], self.asked())
        self.assertEqual(["tree"], self.asked())
        # Which Placement may yet have to be told
        self.counted[INSTANCE] = {ONE, TWO}
        self.assertEqual([ONE, TWO, "tree"], self.asked())

    def test_an_instance_that_goes_may_leave_one_behind(self) -> None:
        self.placement.consumers[ONE].clear()
        self.assertEqual([ONE, TWO, "tree"], self.asked())
        self.placement.add(ONE, MIGRATION)
        self.ended = "its instance is deleted"
        del self.counted[INSTANCE]
        self.assertEqual([ONE, TWO, "tree"], self.asked())
        self.assertEqual(set(), self.placement.consumers[ONE])

    def test_placement_that_did_not_answer_is_asked_again(self) -> None:
        self.asked()
        self.counted[INSTANCE] = {TWO}
        silent = fixtures.MockPatchObject(
            self.placement, "get_providers_in_tree", side_effect=ConnectionError("no route")
        )
        with silent:
            self.assertEqual([], self.asked())
        self.assertEqual([ONE, TWO, "tree"], self.asked())

    def test_a_provider_that_is_new(self) -> None:
        self.looked.release(self.placement, {ONE}, self.counted, self.agrees)
        self.assertEqual([TWO, "tree"], self.asked())

    def test_a_move_is_asked_about_until_it_has_ended(self) -> None:
        """Placement says nothing anew of one that ends in the database."""
        self.placement.add(ONE, MIGRATION)
        self.assertEqual([ONE, TWO, "tree"], self.asked())
        self.assertEqual([ONE, "tree"], self.asked())
        self.ended = "it is confirmed"
        self.assertEqual([ONE, "tree"], self.asked())
        self.assertEqual({INSTANCE}, self.placement.consumers[ONE])
        self.assertEqual([ONE, "tree"], self.asked())
        self.assertEqual(["tree"], self.asked())

    def test_a_move_that_failed_between_two_looks(self) -> None:
        self.asked()
        self.placement.add(ONE, MIGRATION)
        self.ended = "it could not be reverted"
        self.assertEqual([ONE, "tree"], self.asked())
        self.assertEqual({INSTANCE}, self.placement.consumers[ONE])

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

        for consumer in (unreadable, wrong):
            self.placement.add(ONE, consumer)
        with fixtures.MockPatchObject(abandoned_moves, "ended", ended):
            self.looked.release(self.placement, {ONE}, self.counted, agrees)
        self.assertEqual({INSTANCE, unreadable}, self.placement.consumers[ONE])
        self.assertEqual([ONE], compared)

    def test_nothing_to_ask_about(self) -> None:
        self.looked.release(self.placement, set(), {}, self.agrees)
        self.assertEqual([], self.placement.asked)
