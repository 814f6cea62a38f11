# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest
from unittest import mock

from nova import objects
from oslo_utils import uuidutils
from oslotest import base

from nova_gpu.virt.usage import records
from tests.fixtures.recorded_instances import (
    ELSEWHERE,
    GROUP,
    PROJECT,
    answer,
    counted,
    instance,
    migration,
    resources,
)

ONE, TWO = uuidutils.generate_uuid(), uuidutils.generate_uuid()
A, B = "0000:04:00.0", "0000:05:00.0"


RESIZED = {"vm_state": "resized"}


class ReadTest(unittest.TestCase):
    """The database is Nova's objects here; the functional tests have the real one."""

    def test_what_instances_have(self) -> None:
        """What is on its way counts on both hosts, until it is elsewhere."""
        memory = resources("ns_0", resource_class="CUSTOM_PMEM_NAMESPACE_4GB")
        there, here = resources(B, provider=ELSEWHERE), resources(A)
        coming, going = migration(ONE, "host2", "host1"), migration(ONE, "host1", "host2")
        within, both = migration(ONE, "host1", "host1"), resources(B)
        own = {ONE: {(GROUP, A)}}
        for instances, moves, others, expected in (
            (
                [instance(ONE, resources(A, B)), instance(TWO, None)],
                [],
                [],
                {ONE: {(GROUP, A), (GROUP, B)}, TWO: set()},
            ),
            ([instance(ONE, memory)], [], [], {ONE: set()}),
            ([], [coming], [instance(ONE, None, old=there, new=here)], own),
            ([], [going], [instance(ONE, there, old=here, new=there)], own),
            (
                [instance(ONE, both, old=here, new=both)],
                [within],
                [],
                {ONE: {(GROUP, A), (GROUP, B)}},
            ),
            ([], [going], [], {}),  # its instance is gone
            ([instance(ONE, here)], [going], [], own),  # it has claimed nothing yet
        ):
            self.assertEqual(expected, counted(instances, moves, others))

    def test_a_record_that_cannot_be_read_costs_its_instance_alone(self) -> None:
        """Of a second answer, in which its last devices stay its own; of a first it has none."""
        first = answer([instance(ONE, resources(A)), instance(TWO, resources(B))])
        broken = [instance(ONE, resources("a card\n")), instance(TWO, resources(B))]
        for last, expected in ((first, {(GROUP, A)}), (None, set())):
            host_records = answer(broken, last=last)
            self.assertEqual({ONE: expected, TWO: {(GROUP, B)}}, host_records.counted)
            self.assertEqual({ONE}, host_records.busy)
            own = {ONE: expected, TWO: {(GROUP, B)}} if last else {TWO: {(GROUP, B)}}
            self.assertEqual(own, host_records.own)
        moving = instance(ONE, resources(A), old=resources("x"), new=resources(A), **RESIZED)
        host_records = answer([moving], [migration(ONE, "host1", "host2")], last=first)
        self.assertEqual(({ONE: {(GROUP, A)}}, {ONE}), (host_records.counted, host_records.busy))

    def test_a_record_of_another_host_that_cannot_be_read(self) -> None:
        """Of an instance on its way here, and of one whose domain is here"""
        last = records.Records({ONE: frozenset({(GROUP, A)})})
        arriving = migration(ONE, "host2", "host1")
        for migrations, guests in (([arriving], []), ([], [ONE])):
            host_records = answer(
                [instance(TWO, resources(B))],
                migrations,
                guests=guests,
                last=last,
                unreadable=[ONE],
            )
            self.assertEqual({ONE: {(GROUP, A)}, TWO: {(GROUP, B)}}, host_records.counted)
            self.assertEqual({ONE}, host_records.busy)

    def test_who_is_deleted(self) -> None:
        for states in ({"task_state": "deleting"}, {"vm_state": "deleted"}):
            host_records = answer([instance(ONE, resources(A), **states), instance(TWO, None)])
            self.assertEqual({TWO}, host_records.here)

    def test_hundreds_of_failed_moves_cost_one_look_up(self) -> None:
        failed = [migration(ONE, "host1", "host2", status="error") for _ in range(300)]
        with mock.patch.object(records, "_instance", return_value=None) as spy:
            host_records = answer([], failed)
        self.assertEqual(1, spy.call_count)
        self.assertEqual({ONE: {item.uuid for item in failed}}, host_records.migrations)

    def test_who_is_stopped(self) -> None:
        three, four = uuidutils.generate_uuid(), uuidutils.generate_uuid()
        host_records = answer(
            [
                instance(ONE, resources(A), vm_state="stopped"),
                instance(TWO, None, vm_state="stopped"),
                instance(three, resources(B), vm_state="stopped", task_state="powering-on"),
                instance(four, resources("0000:08:00.0")),
            ]
        )
        self.assertEqual({ONE, TWO}, host_records.stopped)

    def test_whether_there_are_moves(self) -> None:
        moved = instance(ONE, resources(A))
        self.assertEqual({}, answer([moved]).migrations)
        failed = migration(ONE, "host1", "host2", status="error")
        host_records = answer([moved], [failed])
        self.assertEqual({ONE, failed.uuid}, host_records.consumers(ONE))
        self.assertEqual({TWO}, host_records.consumers(TWO))
        going = instance(TWO, None, old=resources(B))
        host_records = answer([moved], [migration(TWO, "host1", "host2")], [going])
        self.assertEqual({ONE: PROJECT, TWO: PROJECT}, host_records.projects)
        # Charged is what is here, not what a move keeps.
        self.assertEqual({ONE: {(GROUP, A)}}, host_records.own)
        self.assertEqual({ONE: "a-user"}, host_records.users)

    def test_a_move_that_ends_between_two_questions(self) -> None:
        moving = instance(ONE, None, new=resources(A))
        arrived = instance(ONE, resources(A))
        queries: list[str] = []

        def migrations(*args: object) -> list[objects.Migration]:
            queries.append("migrations")
            return [] if "instances" in queries else [migration(ONE, "host2", "host1")]

        def instances(*args: object, **kwargs: object) -> list[objects.Instance]:
            queries.append("instances")
            return [arrived] if "migrations" in queries else []

        with (
            mock.patch.object(objects.InstanceList, "get_by_host", instances),
            mock.patch.object(objects.MigrationList, "get_in_progress_and_error", migrations),
            mock.patch.object(objects.Instance, "get_by_uuid", return_value=moving),
        ):
            host_records = records.read(mock.sentinel.context, "host1", "node1", ())
        self.assertEqual({ONE: {(GROUP, A)}}, host_records.counted)

    def test_a_move_that_failed(self) -> None:
        """Nova leaves its context with the instance; the tracker counts it while it goes on."""
        moves = [migration(ONE, "host1", "host2", "error")]
        for vm_state, task_state, is_kept in (
            ("active", None, False),
            ("error", None, False),
            ("error", "deleting", False),
            ("active", "resize_migrating", True),
            ("stopped", "resize_prep", True),
            ("active", "rebuild_spawning", True),
            ("resized", None, True),
        ):
            with self.subTest(vm_state=vm_state, task_state=task_state):
                moving = instance(
                    ONE, None, resources(A), resources(B), vm_state=vm_state, task_state=task_state
                )
                expected = {ONE: {(GROUP, A)}} if is_kept else {}
                self.assertEqual(expected, counted([], moves, [moving]))

    def test_while_its_guest_moves(self) -> None:
        """And no longer, whatever became of the migration."""
        for task_state, identifiers in (("migrating", {A}), (None, set())):
            moving = instance(ONE, resources(B), resources(B), resources(A), task_state=task_state)
            for status in ("running", "error"):
                live = migration(ONE, "host2", "host1", status, "live-migration")
                by_instance = counted([], [live], [moving])
                self.assertEqual(
                    identifiers, {identifier for _, identifier in by_instance.get(ONE, ())}
                )

    def test_context_of_another_move(self) -> None:
        """It failed on its way here; later the instance moved from a third host to a fourth."""
        moving = instance(ONE, None, resources(A), resources(B), "resized", migration_id=2)
        for status in ("error", "finished"):
            moves = [migration(ONE, "host2", "host1", status)]
            self.assertEqual({}, counted([], moves, [moving]))

    def test_busy(self) -> None:
        """A task under way, or a build, which at times has none."""
        there = instance(TWO, None, task_state="spawning")
        for states, busy in (
            ({}, set()),
            ({"task_state": "spawning", "vm_state": "shelved_offloaded"}, {ONE}),
            ({"vm_state": "building"}, {ONE}),
        ):
            with self.subTest(**states):
                host_records = answer([instance(ONE, None, **states)], others=[there], guests=[TWO])
                self.assertEqual(busy, host_records.busy)

    def test_on_its_way(self) -> None:
        """An instance in a task is busy on the host that it moves to, not on its source."""
        moving = instance(ONE, resources(A), task_state="resize_prep")
        for moves, busy in (
            ([migration(ONE, "host2", "host1", "pre-migrating")], {ONE}),
            ([migration(ONE, "host1", "host2", "pre-migrating")], set()),
        ):
            self.assertEqual(busy, answer([], moves, [moving]).busy)

    def test_returning(self) -> None:
        """The other host has dropped it and this one not yet taken it."""
        there = instance(ONE, resources(A), task_state="resize_reverting")
        host_records = answer([], others=[there], guests=[ONE, TWO])
        self.assertEqual({ONE}, host_records.returning)
        here = answer([there], guests=[ONE])
        self.assertEqual(set(), here.returning)
        elsewhere = instance(ONE, resources(A, provider=ELSEWHERE), task_state="rebooting")
        self.assertEqual(set(), answer([], others=[elsewhere], guests=[ONE]).returning)


class RequestOfTest(base.BaseTestCase):
    def test_left_by_a_failed_move(self) -> None:
        elsewhere = resources(A, provider=ELSEWHERE)
        for has, old, new, flavors, expected in (
            (resources(A, B), elsewhere, resources(A, B), ("1", "2"), True),
            (resources(A, B), elsewhere, resources(A, B), ("2", "2"), False),  # it has the new one
            (resources(B), elsewhere, resources(A), ("1", "2"), False),  # it was recovered
            (None, elsewhere, None, ("1", "0"), True),
            (None, None, resources(A), ("0", "1"), False),  # it failed at the source
            (resources(A), None, resources(A), ("0", "1"), True),
            (resources(A), resources(A), elsewhere, ("1", "2"), False),  # it is at the source
            (elsewhere, elsewhere, resources(A), ("1", "1"), True),  # it is at the destination
        ):
            with self.subTest(has=has, flavors=flavors):
                here, then = (
                    objects.Flavor(id=int(gpus), extra_specs={"gpus": gpus} if gpus != "0" else {})
                    for gpus in flavors
                )
                moved = instance(ONE, has, old, new)
                moved.flavor, moved.new_flavor = here, then
                self.assertEqual(expected, records.is_left_by_move(moved, {GROUP}))
                moved.task_state = "resize_finish"
                self.assertFalse(records.is_left_by_move(moved, {GROUP}))
                moved.task_state, moved.new_flavor = None, None
                self.assertFalse(records.is_left_by_move(moved, {GROUP}))

    def test_left_by_a_revert_on_one_host(self) -> None:
        """Whose end was lost: it has what it had before, and the new flavor."""
        one, two = (objects.Flavor(id=n, extra_specs={"gpus": str(n)}) for n in (1, 2))
        for old, now, expected in ((one, two, True), (one, one, False), (two, two, False)):
            moved = instance(ONE, resources(A), resources(A), resources(B))
            moved.old_flavor, moved.flavor, moved.new_flavor = old, now, two
            self.assertEqual(expected, records.is_left_by_move(moved, {GROUP}))
