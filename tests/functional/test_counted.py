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

from tests.fixtures import economy
from tests.functional import base, failing_steps, kvm
from tests.functional.readings import Server

# The compute node's own part of an allocation
NODE_PART = {"VCPU": 1, "MEMORY_MB": 128, "DISK_GB": 1}


class Counted(kvm.KVMServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        # Nova allows an image no video memory if the flavor says nothing of it.
        self.bad = self.image(hw_video_ram="4096")
        self.one = self.gpu_flavor(1)
        self.kept = self.node()

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
        self.assertEqual(self.kept, self.node())


class LostAllocationTest(Counted):
    def test_it_comes_back_with_the_end_of_the_rebuild(self) -> None:
        server = self.boot(self.one)
        self.refused({"rebuild": {"imageRef": self.bad}}, server)
        self._wait_until_settled(server, "ERROR")
        self.assertWhole(server, 1)

    def test_in_every_state_it_is_reserved_until_it_is_counted(self) -> None:
        server = self.boot(self.one)
        self.fail_rebuild(server)
        with self.soft_deleted(server):
            with failing_steps.refused_allocations():
                self.period()
                self.assertInventory(reserved=1)
                self.assertEqual(0, self.usage())
                self.assertEqual(
                    ["allocation-differs"], [each.kind for each in self.judge().differences]
                )
            self.period()
            self.assertInventory(used=1)
            self.assertWhole(server, 1)

    def test_after_a_failed_move_as_well(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        small = self.flavor(**{"gpus": "= 1", "hw_video:ram_max_mb": "64"})
        server = self.boot(small, image_uuid=self.image(hw_video_ram="64"))
        self.refused({"resize": {"flavorRef": self.one}}, server)
        self._wait_until_settled(server, "ERROR")
        self.perform(server, "reboot", "ACTIVE", {"type": "HARD"})
        self.fail_rebuild(server)
        self.periods(2)
        self.assertInventory(used=1)
        self.assertEqual(1, self.usage())

    def test_what_others_claim_meanwhile(self) -> None:
        """The claim of another instance publishes what nobody counts, or has it counted."""
        server = self.boot(self.one)
        self.fail_rebuild(server)
        self.boot(self.flavor())
        self.assertWhole(server, 1)
        self.assertInventory(used=1)

    def test_the_nodes_part_whose_room_is_gone(self) -> None:
        """Its operator reserves more memory for the host meanwhile."""
        server = self.boot(self.one)
        self.fail_rebuild(server)
        total = self._get_provider_inventory(self.compute_rp_uuids["host1"])["MEMORY_MB"]["total"]
        self.flags(reserved_host_memory_mb=total - NODE_PART["MEMORY_MB"] + 1)
        with failing_steps.refused_allocations():
            self.period()
        self.periods(2)
        self.assertInventory(used=1)
        self.assertEqual([{"PGPU": 1}], list(self.allocations(server).values()))
        self.assertEqual(NODE_PART | {"MEMORY_MB": total}, self.node())
        (found,) = self.judge(mend=True).repaired.items()
        self.assertEqual("node-part-missing", found[0].kind)
        self.assertIn("no room", found[1] or "")
        self.flags(reserved_host_memory_mb=512)
        self.periods(2)
        self.assertWhole(server, 1)

    def test_of_an_instance_that_gave_its_gpus_back(self) -> None:
        gives = self.flavor(**{"gpus": "= 1", "gpu:on_stop": "release"})
        server = self.boot(gives)
        self.fail_rebuild(server)
        self.perform(server, "os-stop", "SHUTOFF")
        self.perform(server, "rebuild", "SHUTOFF", {"imageRef": base.IMAGE})
        self._start_server(server)
        self.period()
        self.assertWhole(server, 1)

    def test_a_rebuild_that_is_refused(self) -> None:
        """The instance stays as it is, and so does what is counted for it."""
        gives = self.flavor(**{"gpus": f"= {self.TOTAL}", "gpu:on_stop": "release"})
        server = self.boot(gives)
        self._stop_server(server)
        other = self.boot(self.one)
        self.refused({"rebuild": {"imageRef": base.IMAGE}}, server)
        self.assertEqual("SHUTOFF", self._show_server(server)["status"])
        self.assertWhole(server, 0)
        self._delete_server(other)
        self._start_server(server)
        self.assertWhole(server, self.TOTAL)

    def test_on_a_host_that_is_full(self) -> None:
        """What is reserved for it makes room for its allocation, and for none else's."""
        server = self.boot(self.gpu_flavor(2))
        self.boot(self.gpu_flavor(2))
        self.fail_rebuild(server)
        with failing_steps.refused_allocations():
            self.periods(2)
        self.assertInventory(reserved=2, used=2)
        self.assertIn("none", self.boot_refused(self.one))
        self.period()
        self.assertInventory(used=4)
        self.assertWhole(server, 2)

    def test_in_every_period_after_an_upgrade(self) -> None:
        """The first one after a start of the service reserves, the next one counts."""
        server = self.boot(self.gpu_flavor(self.TOTAL))
        self.placement.delete(f"/allocations/{server['id']}")
        self.restart_host("host1")
        self.assertInventory(reserved=self.TOTAL)
        self.period()
        self.assertInventory(used=self.TOTAL)
        self.assertWhole(server, self.TOTAL)


class UnfitImageTest(Counted):
    """An image that states no machine type, where the host's own cannot take the card"""

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.one, image_uuid=self.image(hw_machine_type="q35"))
        self.flags(hw_machine_type=[], group="libvirt")

    def test_rebuild(self) -> None:
        said = self.refused({"rebuild": {"imageRef": base.IMAGE}}, self.server)
        self.assertTrue(any("q35" in each for each in said), said)
        self.assertGPUs(self.server, self.recorded(self.server))
        self.assertTrue(self.guest(self.server).isActive())
        self.assertWhole(self.server, 1)
        # Nova has the new image's properties by now, which say nothing of the machine type.
        self.perform(self.server, "reboot", "ACTIVE", {"type": "HARD"})
        self.assertGPUs(self.server, self.recorded(self.server))

    def test_rescue(self) -> None:
        self.rescue(self.server)
        self.assertEqual(self.recorded(self.server), self.rendered(self.server))
        self.perform(self.server, "unrescue", "ACTIVE")
        self.assertGPUs(self.server, self.recorded(self.server))


class FailedBuildTest(Counted):
    def test_no_guest_ran(self) -> None:
        """A card that no guest could touch is clean."""
        self.period()
        with mock.patch("nova_gpu.privsep.cleaning.reset") as reset:
            self.boot(self.one, image_uuid=self.bad, expected_state="ERROR")
            self.period()
            reset.assert_not_called()
        self.boot(self.gpu_flavor(self.TOTAL))

    def test_a_refusal_is_none(self) -> None:
        """Nova's BuildFailureWeigher would send all others away from the host."""
        self.flags(hw_machine_type=[], group="libvirt")
        self.boot(self.one, expected_state="ERROR")
        self.period()
        self.assertEqual("0", self.failed_builds())
        self.boot(self.flavor(), image_uuid=self.bad, expected_state="ERROR")
        self.period()
        self.assertEqual("1", self.failed_builds())

    def failed_builds(self) -> str:
        node = objects.ComputeNode.get_first_node_by_host_for_old_compat(self.context, "host1")
        return str(node.stats["failed_builds"])


class Limited(Counted):
    def limit(self, gpus: int) -> None:
        of_project = {self.api.project_id: {"class:PGPU": gpus}}
        others = dict.fromkeys(("servers", "class:VCPU", "class:MEMORY_MB", "class:DISK_GB"), 10**6)
        self.limits = limit_fixture.LimitFixture(others | {"class:PGPU": 0}, of_project)
        self.flags(driver="nova.quota.UnifiedLimitsDriver", group="quota")
        self.useFixture(self.limits)

    def assertOver(self, action: dict[str, Any], server: Server) -> None:
        said = self.refused(action, server)
        self.assertTrue(any("quota of class:PGPU is" in each for each in said), said)


class QuotaTest(Limited):
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

    def test_moves_after_a_stop_and_a_start(self) -> None:
        """They are charged by what the instance has, which is nothing more."""
        self.start_host("host2")
        self.limit(3)
        server = self.boot(self.flavor(**{"gpus": "= 2", "gpu:on_stop": "release"}), host="host1")
        self._stop_server(server)
        self._start_server(server)
        self._migrate_server(server)
        self.confirm(server, "host1")
        self.force_down("host2")
        self._evacuate_server(server)
        self.assertEqual("host1", self.host_of(server))

    def test_a_resize_that_nobody_confirms(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        other = self.gpu_flavor(1)
        self.limit(1)
        server = self.boot(self.one)
        self.refused({"resize": {"flavorRef": other}}, server)
        self.limits.projlimits[self.api.project_id]["class:PGPU"] = 2
        self._resize_server(server, other)
        self.assertEqual(2, self.usage())
        self.assertIn("quota of class:PGPU is 2, 2 in use", self.boot_refused(self.one))


class BilledTest(base.GPUServersTestBase):
    """Who bills by notifications sees an end of each claim."""

    HOSTS = ("host1", "host2")
    CAST_AS_CALL = False

    def told(self) -> list[tuple[str, str]]:
        economy.wait_for_quiet(5)
        return [(each.event_type, each.payload["host"]) for each in self.sent()]

    def test_evacuation_and_unshelve_that_fail(self) -> None:
        self.flags(shelved_offload_time=0)
        server = self.boot(self.gpu_flavor(1), host="host1")
        self._shelve_server(server)
        self.sent()
        with failing_steps.GUEST.failing():
            self.api.post_server_action(server["id"], {"unshelve": None})
            self._wait_until_settled(server, "SHELVED_OFFLOADED")
        (claim, release) = self.told()
        self.assertEqual(("gpu.claim", "gpu.release"), (claim[0], release[0]))
        self.assertEqual(claim[1], release[1])
        self._unshelve_server(server)
        source = self.host_of(server)
        self.sent()
        self.force_down(source)
        with failing_steps.GUEST.failing():
            self.api.post_server_action(server["id"], {"evacuate": {}})
            self._wait_until_settled(server, "ERROR")
        (other,) = self.hosts.keys() - {source}
        self.assertEqual([("gpu.claim", other), ("gpu.release", other)], self.told())
        self.period(other)
        self.assertInventory(host=other)
