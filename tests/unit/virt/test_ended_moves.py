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
from nova_gpu.virt.usage.reader import UsageReader
from tests.fixtures.bases import compute
from tests.fixtures.histories import NODENAME

# Others' tests of a period have it replaced.
_settle = EndedMoves.settle


class PlacementOfOne:
    """One provider, and what Placement says is allocated of it"""

    def __init__(self, provider_uuid: str) -> None:
        self.provider_uuid = provider_uuid
        self.looks = 0

    def get_provider_by_name(self, context: object, name: str) -> dict[str, str]:
        return {"uuid": uuids.node}

    def get_providers_in_tree(self, context: object, uuid: str) -> list[dict[str, Any]]:
        group = f"{NODENAME}_gpu_10de_2335_pci"
        named = {uuids.node: NODENAME, self.provider_uuid: group}
        return [{"uuid": item, "name": named[item], "generation": 3} for item in named]

    def get_allocations_for_resource_provider(self, context: object, uuid: str) -> Any:
        self.looks += uuid == self.provider_uuid
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
        reader = UsageReader(libvirt, ledger, lambda: None)
        ended = EndedMoves(libvirt, ledger, gpus.assigned, gpus.releases, reader, lambda: None)
        self.useFixture(
            fixtures.MockPatchObject(type(self.compute), "reportclient", self.placement)
        )
        _settle(ended)
        return self.placement.looks

    def test_only_once_the_database_has_answered(self) -> None:
        self.assertEqual(0, self.looks(Ledger()))
        self.assertEqual(1, self.looks(self.gpus.ledger))
