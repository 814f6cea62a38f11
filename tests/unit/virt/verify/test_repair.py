# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

import fixtures
from nova import objects
from oslotest import base

from nova_gpu.core import exception
from nova_gpu.virt.usage.allocations import Allocations
from nova_gpu.virt.usage.records import Records
from nova_gpu.virt.verify import repair
from nova_gpu.virt.verify.sources import Conflict, Consumer, Difference, GroupProvider, HostState
from tests.fixtures import counted
from tests.fixtures.compute import resources

CARD = "0000:3b:00.0"
UUID = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
GROUP, ROOT = "0b9c8d7e-1111-4222-8333-444455556666", "1b9c8d7e-1111-4222-8333-444455556666"


class Placement(counted.Placement):
    """One that notes what is deleted, too"""

    def __init__(self) -> None:
        super().__init__({ROOT: {"VCPU": 2}, GROUP: {"PGPU": 2}})
        self.deleted: list[tuple[str, str]] = []

    def get_provider_by_name(self, context: object, name: str) -> dict[str, str]:
        return {"uuid": ROOT}

    def delete_allocation_for_instance(
        self, context: object, uuid: str, consumer_type: str
    ) -> None:
        self.deleted.append((uuid, consumer_type))


class RepairTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.placement = Placement()
        self.instance = objects.Instance(
            uuid=UUID,
            task_state=None,
            project_id="project",
            user_id="user",
            node="host1",
            resources=resources((GROUP, CARD)),
        )
        self.useFixture(
            fixtures.MockPatchObject(
                objects.Instance, "get_by_uuid", lambda *_, **__: self.instance
            )
        )
        self.truths = HostState(
            cards=None,
            unfit={},
            guests=None,
            records=Records({UUID: frozenset({(GROUP, CARD)})}),
            wanted={},
            providers={GROUP: GroupProvider("h_gpu", 2, 0, frozenset())},
            allocations=Allocations(),
            holders={UUID: Consumer.DELETED},
        )

    def repair(self, kind: Conflict = Conflict.ALLOCATION_DIFFERS) -> None:
        difference = Difference(kind, UUID, "text", "remedy", True)
        repair.repair(difference, self.truths, self.placement)

    def assertNotRepaired(self, reason: str, kind: Conflict = Conflict.ALLOCATION_DIFFERS) -> None:
        with self.assertRaisesRegex(exception.NotRepaired, reason):
            self.repair(kind)

    def test_what_has_changed_since(self) -> None:
        self.instance.task_state = "rebuilding"
        self.assertNotRepaired("has changed since")
        self.instance.task_state = None
        self.instance.resources = resources((GROUP, "0000:af:00.0"))
        self.assertNotRepaired("has changed since")
        self.assertEqual({"PGPU": 2}, self.placement.resources[GROUP])

    def test_what_is_left_is_removed(self) -> None:
        self.repair(Conflict.ALLOCATION_LEFT)
        self.truths = dataclasses.replace(self.truths, holders={UUID: Consumer.ENDED_MOVE})
        self.repair(Conflict.ALLOCATION_LEFT)
        self.assertEqual([(UUID, "instance"), (UUID, "migration")], self.placement.deleted)

    def test_nothing_else(self) -> None:
        """Any error says what is not repaired."""
        self.assertNotRepaired("no command can repair no-domain", Conflict.NO_DOMAIN)
        self.placement.is_full = True
        self.assertNotRepaired("Placement refuses")
        self.truths = dataclasses.replace(self.truths, holders={})
        self.assertNotRepaired(UUID, Conflict.ALLOCATION_LEFT)
