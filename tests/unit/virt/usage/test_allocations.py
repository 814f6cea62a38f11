# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import fixtures
from nova import exception as nova_exception
from nova import objects
from oslotest import base

from nova_gpu.virt.usage import allocations
from nova_gpu.virt.usage.allocations import Allocations
from nova_gpu.virt.usage.records import Records

NODENAME = "host1"
ROOT, ONE, TWO, ELSE = "root", "group-1", "group-2", "a numa node"
NAMES = {
    ROOT: NODENAME,
    ONE: f"{NODENAME}_gpu_10de_2335_pci",
    TWO: f"{NODENAME}_gpu_10de_26b9_pci",
    ELSE: f"{NODENAME}_NUMA0",
}
INSTANCE, MIGRATION, PLAIN = "instance", "migration", "without GPUs"


class Placement:
    """What is asked of Nova's report client; an allocation that changes counts a provider on."""

    def __init__(self) -> None:
        self.consumers: dict[str, dict[str, dict[str, int]]] = {
            ROOT: {INSTANCE: {"VCPU": 1}, PLAIN: {"VCPU": 1}},
            ONE: {INSTANCE: {"PGPU": 1}},
            TWO: {},
        }
        self.generation_of = {ROOT: 7, ONE: 3, TWO: 1, ELSE: 1}
        self.queries: list[str] = []

    def get_provider_by_name(self, context: object, name: str) -> dict[str, str]:
        self.queries.append(name)
        if ROOT not in self.generation_of:
            raise nova_exception.ResourceProviderNotFound(name_or_uuid=name)
        return {"uuid": ROOT}

    def get_providers_in_tree(self, context: object, uuid: str) -> list[dict[str, Any]]:
        assert uuid == ROOT
        return [
            {"uuid": item, "generation": number, "name": NAMES[item]}
            for item, number in self.generation_of.items()
        ]

    def get_allocations_for_resource_provider(self, context: object, uuid: str) -> Any:
        self.queries.append(uuid)
        counted = self.consumers[uuid].items()
        return SimpleNamespace(allocations={it: {"resources": has} for it, has in counted})

    def change(self, uuid: str, consumer: str, **resources: int) -> None:
        self.consumers[uuid] = {**self.consumers[uuid], consumer: resources}
        self.generation_of[uuid] += 1


class AllocationsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.placement = Placement()
        self.last = Allocations()
        self.records = Records(
            {INSTANCE: frozenset({(ONE, "0000:3b:00.0")}), PLAIN: frozenset()},
            here=frozenset({INSTANCE, PLAIN}),
        )
        self.flavors: Mapping[str, Mapping[str, str]] = {INSTANCE: {}, PLAIN: {}}
        self.useFixture(fixtures.MockPatchObject(objects.Instance, "get_by_uuid", self.instance))
        # It asks the database.
        name = "nova.compute.utils.is_volume_backed_instance"
        self.useFixture(fixtures.MockPatch(name, return_value=False))

    def instance(self, context: object, uuid: str, **kwargs: Any) -> objects.Instance:
        if uuid not in self.flavors:
            raise nova_exception.InstanceNotFound(instance_id=uuid)
        flavor = objects.Flavor(
            vcpus=2,
            memory_mb=64,
            root_gb=0,
            ephemeral_gb=0,
            swap=0,
            extra_specs=dict(self.flavors[uuid]),
        )
        return objects.Instance(uuid=uuid, flavor=flavor, image_ref="image")

    def read(self) -> list[str]:
        """What was asked of whom"""
        self.placement.queries.clear()
        self.last = allocations.read(self.placement, NODENAME, self.records, self.last)
        return sorted(self.placement.queries)

    def test_what_has_changed_is_read(self) -> None:
        self.assertEqual([ONE, TWO, NODENAME, ROOT], self.read())
        self.assertEqual([ONE, ROOT], self.read())  # TWO had no allocation, and got none
        self.placement.change(TWO, MIGRATION, VGPU=2)
        self.assertEqual([ONE, TWO, ROOT], self.read())
        self.assertEqual(2, self.last.gpus(TWO, {INSTANCE, MIGRATION}))
        self.assertEqual(1, self.last.gpus(ONE, {INSTANCE, MIGRATION}))
        self.placement.consumers[ONE] = {}  # deleted, which leaves the generation as it was
        self.read()
        self.assertEqual(0, self.last.gpus(ONE, {INSTANCE}))
        self.assertEqual(0, self.last.gpus("another host's", {INSTANCE}))

    def test_who_lacks_the_nodes_part(self) -> None:
        """With GPUs, or with a flavor that asks for some, or for vGPUs."""
        self.read()
        self.assertEqual({}, self.last.lacking)
        self.placement.consumers[ROOT] = {}
        self.placement.generation_of[ROOT] += 1
        lacks = {"VCPU": 2, "MEMORY_MB": 64}
        self.read()
        self.assertEqual({INSTANCE: lacks}, self.last.lacking)
        for words in ({"gpus": "1"}, {"vgpus": "1"}, {"resources:VGPU": "1"}):
            self.flavors = {INSTANCE: {"resources:PGPU": "1"}, PLAIN: words}
            self.read()
            self.assertEqual({INSTANCE: lacks, PLAIN: lacks}, self.last.lacking)
        self.flavors = {PLAIN: {}}  # the other one was deleted since
        self.read()
        self.assertEqual({}, self.last.lacking)

    def test_a_move_has_it_for_its_instance(self) -> None:
        self.placement.consumers[ROOT] = {MIGRATION: {"VCPU": 1}}
        self.records = Records(
            self.records.counted,
            here=frozenset({INSTANCE}),
            migrations={INSTANCE: frozenset({MIGRATION})},
        )
        self.read()
        self.assertEqual({}, self.last.lacking)
