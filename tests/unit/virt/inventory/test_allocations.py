# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import copy
import unittest
from typing import Any

from nova import exception as nova_exception
from nova import objects

from nova_gpu.core import exception
from nova_gpu.virt.inventory import allocations

NODE, GROUP, OTHER = "node", "group", "another group"
INSTANCE = objects.Instance(uuid="uuid", project_id="project", user_id="user")


class _Placement:
    """Nova's report client, with what Placement counts for one consumer.

    :param conflicts: how many writes find that somebody else has written since
    """

    def __init__(self, counted: dict[str, Any], *, conflicts: int = 0, full: bool = False) -> None:
        self.counted = {uuid: {"resources": each} for uuid, each in counted.items()}
        self.generation = 7
        self._conflicts = conflicts
        self._full = full

    def get_allocs_for_consumer(self, context: Any, uuid: str) -> dict[str, Any]:
        found = copy.deepcopy(self.counted)
        return {"allocations": found, "consumer_generation": self.generation}

    def put_allocations(self, context: Any, uuid: str, payload: dict[str, Any]) -> bool:
        if self._conflicts:
            self._conflicts -= 1
            self.generation += 1
            raise nova_exception.AllocationUpdateFailed(consumer_uuid=uuid, error="conflict")
        assert payload["consumer_generation"] == self.generation
        assert (payload["project_id"], payload["user_id"]) == ("project", "user")
        if not self._full:
            self.counted = payload["allocations"]
        return not self._full

    @property
    def resources(self) -> dict[str, Any]:
        return {uuid: each["resources"] for uuid, each in self.counted.items()}


class AllocationsTest(unittest.TestCase):
    def test_gpus_alone_are_replaced(self) -> None:
        placement = _Placement({NODE: {"VCPU": 1}, GROUP: {"PGPU": 4}, OTHER: {"VGPU": 1}})
        self.assertTrue(allocations.write(placement, INSTANCE, {GROUP}, {}))
        self.assertEqual({NODE: {"VCPU": 1}, OTHER: {"VGPU": 1}}, placement.resources)
        amounts = {GROUP: {"PGPU": 2}}
        self.assertTrue(allocations.write(placement, INSTANCE, {GROUP, OTHER}, amounts))
        self.assertEqual({NODE: {"VCPU": 1}, GROUP: {"PGPU": 2}}, placement.resources)

    def test_what_else_a_provider_gives_stays(self) -> None:
        placement = _Placement({GROUP: {"PGPU": 4, "CUSTOM_X": 1}})
        allocations.write(placement, INSTANCE, {GROUP}, {})
        self.assertEqual({GROUP: {"CUSTOM_X": 1}}, placement.resources)

    def test_no_room(self) -> None:
        placement = _Placement({NODE: {"VCPU": 1}}, full=True)
        self.assertFalse(allocations.write(placement, INSTANCE, {GROUP}, {GROUP: {"PGPU": 1}}))

    def test_others_write_it_too(self) -> None:
        placement = _Placement({GROUP: {"PGPU": 4}}, conflicts=2)
        self.assertTrue(allocations.write(placement, INSTANCE, {GROUP}, {}))
        with self.assertRaisesRegex(exception.PlacementFailed, "others write it all the time"):
            allocations.write(_Placement({}, conflicts=9), INSTANCE, {GROUP}, {})

    def test_beside_what_is_not_counted_at_all(self) -> None:
        placement = _Placement({})
        beside = {NODE: {"resources": {"VCPU": 1}}}
        amounts = {GROUP: {"PGPU": 1}}
        allocations.write(placement, INSTANCE, {GROUP}, amounts, lambda: dict(beside))
        self.assertEqual({NODE: {"VCPU": 1}, GROUP: {"PGPU": 1}}, placement.resources)

    def test_of_groups(self) -> None:
        placement = _Placement({NODE: {"VCPU": 1}, GROUP: {"PGPU": 4}, OTHER: {"VGPU": 1}})
        self.assertEqual({GROUP}, set(allocations.of_groups(placement, "uuid", {GROUP, NODE})))
