# SPDX-License-Identifier: Apache-2.0
"""Each kind of what a move leaves has tests of its own; here is when it is looked for."""

from __future__ import annotations

import types
from typing import Any

import fixtures
from nova import exception as nova_exception
from nova import objects
from oslo_utils.fixture import uuidsentinel as uuids

from nova_gpu.virt.ended_moves import EndedMoves
from nova_gpu.virt.usage.ledger import Ledger
from tests.fixtures.bases import compute

# Others' tests of a period have it replaced.
_settle = EndedMoves.settle


class PlacementOfOne:
    """One provider, and what Placement says is allocated of it"""

    def __init__(self, provider_uuid: str) -> None:
        self.provider_uuid = provider_uuid
        self.looks = 0

    def get_providers_in_tree(self, context: object, uuid: str) -> list[dict[str, Any]]:
        return [{"uuid": self.provider_uuid, "generation": 3}]

    def get_allocations_for_resource_provider(self, context: object, uuid: str) -> Any:
        self.looks += 1
        return types.SimpleNamespace(allocations={uuids.stranger: {"resources": {"PGPU": 1}}})


class EndedMovesTest(compute.ComputeTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.placement = PlacementOfOne(self.provider)
        unknown = nova_exception.MigrationNotFound(migration_id=uuids.stranger)
        self.useFixture(
            fixtures.MockPatchObject(objects.Migration, "get_by_uuid", side_effect=unknown)
        )

    def looks(self, ledger: Ledger) -> int:
        """How often Placement was asked who has what"""
        gpus, libvirt = self.gpus, self.compute.libvirt
        ended = EndedMoves(libvirt, ledger, gpus.assigned, gpus.releases, lambda: None)
        self.useFixture(
            fixtures.MockPatchObject(type(self.compute), "reportclient", self.placement)
        )
        _settle(ended)
        return self.placement.looks

    def test_only_once_the_database_has_answered(self) -> None:
        self.assertEqual(0, self.looks(Ledger()))
        self.assertEqual(1, self.looks(self.gpus.ledger))
