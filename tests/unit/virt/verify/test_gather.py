# SPDX-License-Identifier: Apache-2.0
"""Who answers and who does not; what each is asked has tests of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import fixtures
from nova import exception as nova_exception
from nova import objects
from oslotest import base

from nova_gpu.core.flavor import request
from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.host.vgpu import division
from nova_gpu.virt.delivery import deliveries, made_vgpus
from nova_gpu.virt.usage import allocations, records
from nova_gpu.virt.usage.allocations import Allocations
from nova_gpu.virt.verify import gather
from nova_gpu.virt.verify.sources import Consumer, GroupProvider
from tests.fixtures import hosts, vgpu
from tests.fixtures.bases.host import HostTestCase
from tests.fixtures.compute import Compute, devices


class GatherTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        host.add_gpu(WHOLE, "10de", "2335", driver="vfio-pci")
        self.compute = self.useFixture(Compute(host))
        self.discovery = self.compute.gpus._discovery
        self.provider = self.compute.provider("2335")
        self.instance = self.compute.instance({"gpus": "1"}, (self.provider, WHOLE))
        self.compute.spawn(self.instance)
        self.instance.vm_state = "active"
        self.consumers: tuple[str, ...] = (self.instance.uuid,)
        for owner, name, what in (
            (gather, "read_providers", self._providers),
            (allocations, "read", self._allocations),
            (objects.InstanceList, "get_by_host", lambda *_, **__: [self.instance]),
            (objects.MigrationList, "get_in_progress_and_error", lambda *_: []),
            (objects.Instance, "get_by_uuid", self._instance),
            (objects.Migration, "get_by_uuid", self._no_migration),
            (gather.abandoned_moves, "ended", lambda *_: False),
            (records, "read", self._records),
        ):
            self.useFixture(fixtures.MockPatchObject(owner, name, what))

    def _providers(self, *_: Any) -> dict[str, GroupProvider]:
        return {self.provider: GroupProvider("h_gpu", 1, 0, devices([WHOLE]))}

    def _allocations(self, *_: Any) -> Allocations:
        consumers = {uuid: {"PGPU": 1} for uuid in self.consumers}
        return Allocations(by_provider={self.provider: consumers})

    def _records(self, *_: Any) -> records.Records:
        return records.Records({self.instance.uuid: frozenset({(self.provider, WHOLE)})})

    def _instance(self, context: Any, uuid: str) -> Any:
        if uuid == "deleted":
            return SimpleNamespace(deleted=True)
        if uuid == "elsewhere":
            return SimpleNamespace(deleted=False, host="host2", task_state=None)
        raise nova_exception.InstanceNotFound(instance_id=uuid)

    def _no_migration(self, context: Any, uuid: str) -> Any:
        raise nova_exception.MigrationNotFound(migration_id=uuid)

    def gather(self) -> Any:
        sources = (self.discovery, self.compute.libvirt, self.compute, self.discovery.unavailable)
        return gather.gather(gather.Sources(*sources))

    def test_who_does_not_answer(self) -> None:
        """Is named, with where to look; the others are asked all the same."""
        for who, lacking, target in (
            ("Placement", "providers", (gather, "read_providers")),
            ("Placement", "providers", (allocations, "read")),
            ("Nova's database", "records", (records, "read")),
        ):
            away = OSError(f"{who} is away\nand its stack below")
            with fixtures.MockPatchObject(*target, side_effect=away):
                host_state = self.gather()
            (unread,) = host_state.unread
            self.assertTrue(unread.startswith(f"{who}: {who} is away; see "), unread)
            missing = [n for n in ("guests", "records", "providers") if not getattr(host_state, n)]
            self.assertEqual([lacking], missing)

    def test_holders(self) -> None:
        self.consumers = ("deleted", "elsewhere", "unknown")
        expected = {
            "deleted": Consumer.DELETED,
            "elsewhere": Consumer.ELSEWHERE,
            "unknown": Consumer.UNKNOWN,
        }
        self.assertEqual(expected, self.gather().holders)

    def test_count_of_who_released_them(self) -> None:
        """A stopped instance has none, and one whose start failed after that."""
        self.instance.resources = None
        read = records.Records({self.instance.uuid: frozenset()})
        for state, count in (("active", 1), ("stopped", 0), ("error", 0)):
            self.instance.vm_state = state
            (wanted,) = gather._wanted(None, read).values()
            self.assertEqual((state == "active", count), (wanted.active, wanted.count))

    def test_asked(self) -> None:
        """Of a flavor that cannot be read any more, what it has"""
        held = list(devices([WHOLE, "0000:5e:00.0/nvidia-63/0"]))
        for specs, count in (
            ({"gpus": "2"}, 2),
            ({"gpus": "2", "vgpus": "1"}, 3),
            ({"gpus": "many"}, 2),
            ({"resources:VGPU": "1"}, 1),
            ({}, 0),
        ):
            self.assertEqual(count, gather.asked_of(request.of(specs), held), specs)


MEDIATING, PROFILED, WHOLE = "0000:3b:00.0", "0000:82:00.0", "0000:af:00.0"
ONE = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
TWO = "0b9c8d7e-1111-4222-8333-444455556666"


class TestMade(HostTestCase):
    def setUp(self) -> None:
        super().setUp()
        vgpu.add_p4(self.host, MEDIATING)
        self.host.add_gpu(PROFILED, "10de", "26b9", totalvfs=2)
        self.functions = vgpu.add_functions(self.host, PROFILED, 2)
        for function in self.functions:
            vgpu.set_profiles(self.host, function, vgpu.L40S)
        self.notes = self.root / "gpu-vgpus"

    def made(self, owners: dict[str, set[Any]]) -> dict[str, frozenset[Slot]]:
        discovery: Any = SimpleNamespace(
            vgpus=self.notes, deliveries=deliveries.Deliveries(self.host.roots, lambda _: None)
        )
        parts = division.divided(self.host.gpus(), self.host.roots)
        return gather.made_vgpus(discovery, parts, owners)

    def test_whose_is_there(self) -> None:
        mediated = Slot.parse(f"{MEDIATING}/nvidia-64/0")
        function, other = (Slot.parse(f"{function}/nvidia-1155/0") for function in self.functions)
        owners: dict[str, set[Any]] = {
            ONE: {mediated, function},
            TWO: {mediated, other, mediated.parent},
        }
        self.assertEqual({}, self.made(owners))
        vgpu.make(self.host, MEDIATING, "nvidia-64", device_uuid(ONE, mediated))
        vgpu.set_profiles(self.host, self.functions[0], {}, current=1155)
        vgpu.set_profiles(self.host, self.functions[1], {}, current=1156)
        there = {ONE: frozenset({mediated, function})}
        self.assertEqual(there, self.made(owners))
        self.assertEqual({}, self.made({}))
        # Nobody names it or counts it, but it is noted.
        noted = made_vgpus.MadeVGPUs(self.notes)
        noted.add(function, TWO)
        noted.add(mediated, TWO)  # which is not there
        self.assertEqual({TWO: frozenset({function})}, self.made({}))

    def test_plain_function_is_there_as_long_as_its_card_has_it(self) -> None:
        self.host.add_gpu("0000:c3:00.0", "8086", "56c0", totalvfs=1)
        self.host.add_vf("0000:c3:00.0", "0000:c3:00.1")
        here, gone = (Slot.parse(f"0000:c3:00.{number}/vf/0") for number in (1, 2))
        self.assertEqual({ONE: frozenset({here})}, self.made({ONE: {here, gone}}))
