# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any
from unittest import mock

import fixtures
from nova import objects
from oslotest import base

from nova_gpu.core.device import Device
from nova_gpu.virt.verify import abandoned_moves
from tests.fixtures.compute import devices, resources

HOST, NODE = "host1", "node1"
MOVE, UUID = "1b9c8d7e-1111-4222-8333-444455556666", "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"


class Placement:
    """What is asked of Nova's report client"""

    def __init__(self) -> None:
        self.allocated = {MOVE}
        self.moved: list[tuple[str, str]] = []

    def get_allocations_for_consumer(self, context: object, uuid: str) -> dict[str, int]:
        return {"group": 1} if uuid in self.allocated else {}

    def move_allocations(self, context: object, source: str, target: str) -> None:
        self.moved.append((source, target))


def _gpus(*buses: str) -> objects.ResourceList:
    """Those on these buses"""
    return resources(*((NODE, f"0000:{bus}:00.0") for bus in buses))


class AbandonedMovesTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.placement = Placement()
        self.moves = abandoned_moves.AbandonedMoves(HOST)
        self.saved: list[str] = []
        self.dropped: list[str] = []
        self.has: frozenset[Device] = frozenset()
        self.migration = objects.Migration(
            id=3,
            uuid=MOVE,
            instance_uuid=UUID,
            source_compute=HOST,
            dest_compute="host2",
            status="migrating",
            migration_type="resize",
            old_instance_type_id=1,
        )
        self.instance = objects.Instance(
            uuid=UUID,
            host=HOST,
            instance_type_id=1,
            task_state=None,
            vm_state="active",
            resources=_gpus("04"),
            migration_context=objects.MigrationContext(
                migration_id=3, old_resources=_gpus("04"), new_resources=_gpus("05", "08")
            ),
        )
        for owner, name, what in (
            (objects.MigrationList, "get_in_progress_and_error", lambda *_: [self.migration]),
            (objects.Instance, "get_by_uuid", lambda *_, **__: self.instance),
            (objects.Instance, "drop_migration_context", lambda i: self.dropped.append(i.uuid)),
            (objects.Migration, "save", lambda m: self.saved.append(m.status)),
        ):
            self.useFixture(fixtures.MockPatchObject(owner, name, what))

    def looks(self, count: int = 2) -> bool:
        """Whether the move was ended after so many looks"""
        self.saved.clear()
        for _ in range(count):
            self.moves.end(
                self.placement, NODE, lambda _: self.has, self.placement.allocated.__contains__
            )
        return bool(self.saved)

    def test_two_looks(self) -> None:
        """One under way may be between two tasks; a live one counts while its domain is here."""
        self.assertFalse(self.looks(1))
        self.instance.task_state = "resize_migrating"
        self.assertFalse(self.looks(1))
        self.instance.task_state = None
        self.assertFalse(self.looks(1), "seen anew")
        self.assertTrue(self.looks(1))
        self.assertEqual([(MOVE, UUID)], self.placement.moved)
        self.assertEqual((["error"], [UUID]), (self.saved, self.dropped))
        self.migration.migration_type, self.migration.status = "live-migration", "running"
        self.assertFalse(self.looks())
        self.has = devices(["0000:3b:00.0"])
        self.assertTrue(self.looks())
        self.instance.migration_context = None
        self.assertFalse(self.looks())

    def test_failed_with_its_allocation(self) -> None:
        """What it keeps is the instance's, which is in ERROR, or was recovered by a hard reboot."""
        self.migration.status = "error"
        for self.instance.vm_state in ("error", "active"):
            self.assertTrue(self.looks())
        self.placement.allocated.clear()
        self.assertFalse(self.looks())

    def test_others(self) -> None:
        """Moves that are confirmed or reverted, of other hosts, and of instances that moved"""
        for owner, changes in (
            (self.migration, {"status": "finished"}),
            (self.migration, {"source_compute": "host2"}),
            (self.migration, {"migration_type": "evacuation"}),
            (self.instance, {"host": "host2"}),
            (self.instance, {"vm_state": "resized"}),
        ):
            before: dict[str, Any] = {name: getattr(owner, name) for name in changes}
            for name, value in changes.items():
                setattr(owner, name, value)
            self.assertFalse(self.looks(), changes)
            for name, value in before.items():
                setattr(owner, name, value)
        self.assertTrue(self.looks())

    def test_interrupted_on_its_own_host(self) -> None:
        """Its flavor tells at which end of the move it is."""
        self.migration.status, self.migration.dest_compute = "post-migrating", HOST
        self.assertTrue(self.looks())
        self.assertEqual([(MOVE, UUID)], self.placement.moved)
        self.migration.status, self.instance.instance_type_id = "post-migrating", 2
        self.assertFalse(self.looks())

    def test_failed_on_its_own_host(self) -> None:
        """Nova's tracker counts what was claimed, whatever Placement does."""
        self.placement.allocated.clear()
        self.migration.status, self.migration.dest_compute = "error", HOST
        for vm_state, has, is_left in (
            ("error", ["04"], True),
            ("error", ["05", "08"], False),
            ("error", ["09"], False),  # a hard reboot gives it others
            ("active", ["04"], True),
            ("active", ["05"], True),
            ("stopped", [], True),
            ("active", ["05", "08"], False),
        ):
            self.instance.vm_state, self.instance.resources = vm_state, _gpus(*has)
            self.assertEqual(is_left, self.looks(), (vm_state, has))
            self.assertEqual({UUID} if is_left else set(), set(self.dropped))
            self.dropped.clear()
        self.instance.migration_context.migration_id = 4
        self.assertFalse(self.looks())

    def test_failed_with_its_task(self) -> None:
        """nova-compute died while it put the instance into ERROR."""
        self.placement.allocated.clear()
        self.migration.status, self.migration.dest_compute = "error", HOST
        for vm_state, task_state, is_ended in (
            ("error", "resize_prep", True),
            ("error", "resize_migrating", True),
            ("error", "reboot_started_hard", False),
            ("error", "deleting", False),
            ("active", "resize_migrating", False),
        ):
            self.instance.vm_state, self.instance.task_state = vm_state, task_state
            self.assertEqual(is_ended, self.looks(), (vm_state, task_state))
        self.migration.status, self.instance.vm_state = "migrating", "error"
        self.instance.task_state = "resize_migrating"
        self.assertFalse(self.looks())

    def test_hundreds_that_failed_cost_one_look_up(self) -> None:
        """Nova keeps them until their instance is deleted; of some that is gone already."""
        self.placement.allocated.clear()
        self.migration.status = "error"
        patch, name = fixtures.MockPatchObject, "get_in_progress_and_error"
        self.useFixture(patch(objects.MigrationList, name, return_value=[self.migration] * 300))
        name = "get_allocations_for_consumer"
        self.useFixture(patch(self.placement, name, side_effect=AssertionError))
        for arguments in ({"return_value": self.instance}, {"side_effect": OSError("gone")}):
            lookup = self.useFixture(patch(objects.Instance, "get_by_uuid", **arguments)).mock
            self.assertFalse(self.looks())
            self.assertEqual(2, lookup.call_count)
        self.assertEqual(2, self.log.output.count("gone"))

    def test_one_that_cannot_be_read(self) -> None:
        """It keeps no other move from being ended."""
        unreadable = objects.Migration(
            id=2,
            uuid="0b9c8d7e-1111-4222-8333-444455556666",
            instance_uuid="6d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d",
            source_compute=HOST,
            status="migrating",
            migration_type="resize",
        )

        def get_by_uuid(context: object, uuid: str, **_: object) -> objects.Instance:
            if uuid == unreadable.instance_uuid:
                raise ValueError("date value out of range")
            return self.instance

        both, listed = [unreadable, self.migration], "get_in_progress_and_error"
        self.useFixture(fixtures.MockPatchObject(objects.MigrationList, listed, lambda *_: both))
        self.useFixture(fixtures.MockPatchObject(objects.Instance, "get_by_uuid", get_by_uuid))
        self.assertTrue(self.looks())
        self.assertEqual([(MOVE, UUID)], self.placement.moved)
        message = (
            f"its move {unreadable.uuid} is abandoned, or end it, will retry in the next period"
        )
        self.assertIn(f"{message}: date value out of range", self.log.output)


class EndedTest(base.BaseTestCase):
    def test_which_need_nothing_any_more(self) -> None:
        live, resize = "live-migration", "resize"
        reverted = "failed or was interrupted"
        for kind, status, source, at, flavor, task, reason in (
            (resize, "confirmed", HOST, "host2", 2, None, "it is confirmed"),
            (resize, "error", HOST, "host2", 2, None, reverted),
            (resize, "reverted", HOST, "host2", 1, None, reverted),
            (resize, "reverted", HOST, "host2", 1, "resize_reverting", None),
            (resize, "reverted", HOST, HOST, 1, None, None),
            (resize, "finished", HOST, "host2", 2, None, None),
            (resize, "finished", HOST, "deleted", 2, None, "its instance is deleted"),
            (resize, "error", HOST, HOST, 1, None, None),
            # On one host: with the old flavor it has what it had.
            (resize, "reverted", "host2", "host2", 1, None, None),
            (resize, "error", "host2", "host2", 2, None, reverted),
            (resize, "post-migrating", "host2", "host2", 1, None, None),
            (resize, "post-migrating", HOST, "host2", 1, None, None),
            (resize, "post-migrating", HOST, "host2", 2, None, reverted),
            (resize, "post-migrating", HOST, "host2", 2, "resize_finish", None),
            # Its source has died: Nova ends it never.
            (live, "running", HOST, "host2", 1, None, "runs at the destination"),
            (live, "completed", HOST, "host2", 1, None, "runs at the destination"),
            (live, "running", HOST, HOST, 1, None, None),
        ):
            with self.subTest(kind=kind, status=status, source=source, at=at, task=task):
                migration = objects.Migration(
                    uuid=MOVE,
                    instance_uuid=UUID,
                    migration_type=kind,
                    status=status,
                    source_compute=source,
                    dest_compute="host2",
                    old_instance_type_id=1,
                )
                instance = objects.Instance(
                    uuid=UUID,
                    host=at,
                    task_state=task,
                    deleted=at == "deleted",
                    instance_type_id=flavor,
                )
                patch = mock.patch.object(objects.Instance, "get_by_uuid", return_value=instance)
                with (
                    patch,
                    mock.patch.object(objects.Migration, "get_by_uuid", return_value=migration),
                ):
                    self.assertIn(reason or "None", str(abandoned_moves.ended(object(), MOVE)))
