# SPDX-License-Identifier: Apache-2.0
"""What an instance has is counted for it, or reserved: by Placement, quota and the host alike.

Nova deletes the whole allocation of an instance whose rebuild fails, after the driver has returned.
Tenants make a rebuild fail with an image of their own that no guest starts with.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

from keystoneauth1 import exceptions as ks_exceptions
from nova import objects
from nova.scheduler.client import report
from oslo_limit import fixture as limit_fixture

from tests.functional import base, failing_steps, kvm
from tests.functional.readings import Server

# The compute node's own part of an allocation
NODE_PART = {"VCPU": 1, "MEMORY_MB": 128, "DISK_GB": 1}


class CountedTest(kvm.KVMServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        # Nova allows an image no video memory if the flavor says nothing of it.
        self.bad = self.image(hw_video_ram="4096")
        self.one = self.gpu_flavor(1)
        self.before = self.node()

    def fail_rebuild(self, server: Server) -> None:
        """Placement refuses what nova-compute writes as soon as Nova has deleted the allocation."""
        with failing_steps.refused_allocations():
            self.refused({"rebuild": {"imageRef": self.bad}}, server)
            self._wait_until_settled(server, "ERROR")
            self.assertEqual({}, self.allocations(server))

    def node(self) -> dict[str, int]:
        """What the host keeps of its own"""
        inventory = self._get_provider_inventory(self.compute_rp_uuids["host1"])
        return {name: inventory[name]["reserved"] for name in NODE_PART}

    def usage(self) -> int:
        """The GPUs that Placement counts for the project"""
        url = f"/usages?project_id={self.api.project_id}"
        usages: dict[str, Any] = self.placement.get(url, version="1.9").body["usages"]
        return int(usages.get("PGPU", 0))

    def assertWhole(self, server: Server, gpus: int) -> None:
        parts = self.allocations(server)
        self.assertEqual(NODE_PART, parts.pop(self.compute_rp_uuids["host1"]))
        self.assertEqual([{"PGPU": gpus}] if gpus else [], list(parts.values()))
        self.assertEqual(self.before, self.node())

    def limit(self, gpus: int) -> None:
        of_project = {self.api.project_id: {"class:PGPU": gpus}}
        others = dict.fromkeys(("servers", "class:VCPU", "class:MEMORY_MB", "class:DISK_GB"), 10**6)
        self.limits = limit_fixture.LimitFixture(others | {"class:PGPU": 0}, of_project)
        self.flags(driver="nova.quota.UnifiedLimitsDriver", group="quota")
        self.useFixture(self.limits)

    def assertOver(self, action: dict[str, Any], server: Server) -> None:
        messages = self.refused(action, server)
        self.assertTrue(any("quota of class:PGPU is" in message for message in messages), messages)

    def failed_builds(self) -> str:
        node = objects.ComputeNode.get_first_node_by_host_for_old_compat(self.context, "host1")
        return str(node.stats["failed_builds"])

    def test_it_is_reserved_until_it_is_counted(self) -> None:
        """What is reserved makes room for its own allocation, and for none else's."""
        server = self.boot(self.gpu_flavor(2))
        self.boot(self.gpu_flavor(2))
        self.fail_rebuild(server)
        with self.soft_deleted(server):
            with failing_steps.refused_allocations():
                self.periods(2)
                self.assertInventory(reserved=2, used=2)
                self.assertEqual(2, self.usage())
                kinds = [difference.kind for difference in self.judge().differences]
                self.assertEqual(["allocation-differs"], kinds)
            self.assertIn("none", self.boot_refused(self.one))
            self.period()
            self.assertInventory(used=4)
            self.assertWhole(server, 2)

    def test_image_without_a_machine_type(self) -> None:
        """Where the host's own cannot take the card. A refusal is no failed build: Nova's
        BuildFailureWeigher would send all others away from the host."""
        server = self.boot(self.one, image_uuid=self.image(hw_machine_type="q35"))
        self.flags(hw_machine_type=[], group="libvirt")
        messages = self.refused({"rebuild": {"imageRef": base.IMAGE}}, server)
        self.assertTrue(any("q35" in message for message in messages), messages)
        self.assertGPUs(server, self.recorded(server))
        self.assertTrue(self.guest(server).isActive())
        self.assertWhole(server, 1)
        # Nova has the new image's properties by now, which say nothing of the machine type.
        self.perform(server, "reboot", "ACTIVE", {"type": "HARD"})
        self.assertGPUs(server, self.recorded(server))
        self.perform(server, "rescue", "RESCUE", {"rescue_image_ref": base.IMAGE})
        self.perform(server, "unrescue", "ACTIVE")
        self.assertGPUs(server, self.recorded(server))

        self.boot(self.one, expected_state="ERROR")
        self.period()
        self.assertEqual("0", self.failed_builds())
        self.boot(self.flavor(), image_uuid=self.bad, expected_state="ERROR")
        self.period()
        self.assertEqual("1", self.failed_builds())

    def test_failed_rebuilds_give_no_more_than_the_limit(self) -> None:
        self.limit(1)
        counted = self.flavor(**{"gpus": "= 1", "resources:PGPU": "1"})
        first = self.boot(counted)
        self.fail_rebuild(first)
        second = self.boot(counted)
        again = {"rebuild": {"imageRef": base.IMAGE}}
        for _ in range(2):  # before and after a period
            self.assertOver(again, first)
            self.assertOver({"reboot": {"type": "HARD"}}, first)
            self.assertEqual("ERROR", self._show_server(first)["status"])
            self.period()
            self.assertEqual(2, self.usage())
        self._delete_server(second)
        self.perform(first, "rebuild", "ACTIVE", {"imageRef": base.IMAGE})
        self.assertWhole(first, 1)

    def test_a_limit_that_was_lowered_since(self) -> None:
        """A guest that is counted starts, also while Placement is down."""
        self.leaves = {"limit": "it was lowered below what the project has"}
        self.limit(2)
        server = self.boot(self.gpu_flavor(2))
        self.limits.projlimits[self.api.project_id]["class:PGPU"] = 1
        self._stop_server(server)
        lost = ks_exceptions.ConnectFailure
        method = "get_allocs_for_consumer"
        with mock.patch.object(report.SchedulerReportClient, method, side_effect=lost):
            self._start_server(server)
        self.perform(server, "reboot", "ACTIVE", {"type": "HARD"})
        self.perform(server, "rebuild", "ACTIVE", {"imageRef": base.IMAGE})
        self.assertWhole(server, 2)
