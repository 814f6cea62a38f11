# SPDX-License-Identifier: Apache-2.0
"""Who answers and who does not; what each is asked has tests of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import fixtures
from nova import exception as nova_exception
from nova import objects
from oslotest import base

from nova_gpu.core import exception
from nova_gpu.core.flavor import request
from nova_gpu.virt.usage import records
from nova_gpu.virt.verify import gather, gather_host
from nova_gpu.virt.verify.sources import Holder, Provider
from tests.fixtures import hosts
from tests.fixtures.compute import Compute, devices

ONE = "0000:3b:00.0"


class GatherTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        host.add_gpu(ONE, "10de", "2335", driver="vfio-pci")
        self.compute = self.useFixture(Compute(host))
        self.looked = self.compute.gpus._discovery
        self.provider = self.compute.provider("2335")
        self.instance = self.compute.instance({"gpus": "1"}, (self.provider, ONE))
        self.compute.spawn(self.instance)
        self.instance.vm_state = "active"
        self.away: set[str] = set()
        self.allocated = {self.instance.uuid: 1}
        for owner, name, what in (
            (gather_host, "read_providers", self._providers),
            (gather_host, "node_consumers", lambda *_: frozenset({self.instance.uuid})),
            (objects.InstanceList, "get_by_host", lambda *_, **__: [self.instance]),
            (objects.MigrationList, "get_in_progress_and_error", lambda *_: []),
            (objects.Instance, "get_by_uuid", self._instance),
            (objects.Migration, "get_by_uuid", self._no_migration),
            (gather.abandoned_moves, "ended", lambda *_: False),
            (records, "read", self._records),
        ):
            self.useFixture(fixtures.MockPatchObject(owner, name, what))

    def _answer(self, who: str) -> None:
        if who in self.away:
            raise OSError(f"{who} is away\nand its stack below")

    def _providers(self, *_: Any) -> dict[str, Provider]:
        self._answer("Placement")
        card = devices([ONE])
        return {self.provider: Provider("h_gpu", 1, 0, self.allocated, card)}

    def _records(self, *_: Any) -> records.Records:
        self._answer("Nova's database")
        return records.Records({self.instance.uuid: frozenset({(self.provider, ONE)})})

    def _instance(self, context: Any, uuid: str) -> Any:
        if uuid == "deleted":
            return SimpleNamespace(deleted=True)
        if uuid == "elsewhere":
            return SimpleNamespace(deleted=False, host="host2", task_state=None)
        raise nova_exception.InstanceNotFound(instance_id=uuid)

    def _no_migration(self, context: Any, uuid: str) -> Any:
        raise nova_exception.MigrationNotFound(migration_id=uuid)

    def gather(self) -> Any:
        asked = (self.looked, self.compute.libvirt, self.compute, self.looked.unavailable)
        return gather.gather(gather.Sources(*asked))

    def test_all_answer(self) -> None:
        found = self.gather()
        card, uuid = devices([ONE]), self.instance.uuid
        self.assertEqual((), found.unread)
        self.assertEqual((card, card), (found.cards, found.guests[uuid].cards))
        self.assertEqual(card, found.instances[uuid].cards)
        self.assertTrue(found.instances[uuid].settled)
        self.assertEqual(1, found.instances[uuid].flavor_count)
        self.assertEqual({}, found.holders)

    def test_who_does_not_answer(self) -> None:
        """Is named, with where to look; the others are asked all the same."""
        for who, lacking in (("Placement", "providers"), ("Nova's database", "instances")):
            self.away = {who}
            found = self.gather()
            (unread,) = found.unread
            self.assertTrue(unread.startswith(f"{who}: {who} is away; see "), unread)
            missing = [n for n in ("guests", "instances", "providers") if not getattr(found, n)]
            self.assertEqual([lacking], missing)

    def test_host_that_cannot_be_read(self) -> None:
        lost = exception.DiscoveryFailed("/sys", "no sysfs")
        self.useFixture(fixtures.MockPatchObject(self.looked, "find", side_effect=lost))
        nodes = [SimpleNamespace(hypervisor_hostname="host1")]
        self.useFixture(
            fixtures.MockPatchObject(objects.ComputeNodeList, "get_all_by_host", lambda *_: nodes)
        )
        found = self.gather()
        self.assertEqual((None, None, None), (found.cards, found.guests, found.made))
        self.assertIsNotNone(found.instances)
        self.assertIn("sysfs: The host's GPUs cannot be listed: /sys: no sysfs", found.unread[0])

    def test_holders(self) -> None:
        self.allocated = dict.fromkeys(("deleted", "elsewhere", "unknown"), 1)
        expected = {
            "deleted": Holder.DELETED,
            "elsewhere": Holder.ELSEWHERE,
            "unknown": Holder.UNKNOWN,
        }
        self.assertEqual(expected, self.gather().holders)

    def test_asked(self) -> None:
        """Of a flavor that cannot be read any more, what it has"""
        held = list(devices([ONE, "0000:5e:00.0/nvidia-63/0"]))
        for specs, count in (
            ({"gpus": "2"}, 2),
            ({"gpus": "2", "vgpus": "1"}, 3),
            ({"gpus": "many"}, 2),
            ({"resources:VGPU": "1"}, 1),
            ({}, 0),
        ):
            self.assertEqual(count, gather.asked_of(request.of(specs), held), specs)
