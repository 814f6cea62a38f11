# SPDX-License-Identifier: Apache-2.0
"""Instances that have cards by stock Nova are taken over as they run."""

from __future__ import annotations

from typing import Any
from unittest import mock

from nova import objects
from nova.scheduler.client import report

from nova_gpu_migrate.core.stock_holding import NotTakenOver
from nova_gpu_migrate.virt import adoption
from tests.functional import aliases, stock


class AdoptTest(stock.Adopting):
    def test_an_instance_that_becomes_busy_in_the_same_moment(self) -> None:
        server = self.boot_by_alias()
        had = self.has(server)
        self.change_driver()
        takeover, (holding,) = self.takeover(), self.look().holdings
        takeover.count(holding)
        settled = adoption.settled

        def and_then_it_is_resized(*args: Any) -> objects.Instance:
            instance = settled(*args)
            if instance.resources:
                instance.task_state = "resize_prep"
                instance.save()
            return settled(*args)

        with mock.patch.object(adoption, "settled", and_then_it_is_resized):
            self.assertRaises(NotTakenOver, takeover.record, holding)
        self.assertEqual([], self.recorded(server))
        spec = self.instance(server).flavor.extra_specs
        self.assertEqual({"pci_passthrough:alias": "a2:1"}, spec)
        self.assertEqual(1, len(self.instance(server).pci_requests.requests))
        instance = self.instance(server)
        instance.task_state = None
        instance.save()
        self.finish()
        self.assertAdopted(server, had)

    def test_what_an_interruption_leaves(self) -> None:
        """nova-compute starts after it: its driver ends it, and no move carries anything on."""
        self.flags(shelved_offload_time=0)
        moved, shelved, begun = (self.boot_by_alias() for _ in range(3))
        self.change_driver()
        takeover, holdings = self.takeover(), self.look().holdings
        holdings = tuple(holding for holding in holdings if holding.instance.uuid != begun["id"])
        for holding in self.look().holdings:
            takeover.respecify(holding)
        # The requests to Placement grow with the number of instances, and not with its square.
        read, consumers = report.SchedulerReportClient.get_allocs_for_consumer, []

        def noted(client: Any, context: Any, consumer: str) -> Any:
            consumers.append(consumer)
            return read(client, context, consumer)

        with mock.patch.object(report.SchedulerReportClient, "get_allocs_for_consumer", noted):
            for holding in holdings:
                takeover.count(holding)
        self.assertEqual(len(holdings), len(consumers))
        for holding in holdings:
            takeover.record(holding)
        for server in (moved, shelved):
            self.assertEqual(self.recorded(server), self.rows(server))
        self.take_driver()
        self.assertAdopted(moved, self.recorded(moved))
        (holding,) = self.look().holdings
        self.assertEqual(begun["id"], holding.instance.uuid)
        spec = objects.RequestSpec.get_by_instance_uuid(self.context, begun["id"])
        self.assertEqual({"pci_passthrough:alias": "a2:1"}, spec.flavor.extra_specs)
        self._delete_server(begun)
        self._shelve_server(shelved, expected_state="SHELVED_OFFLOADED")
        self.perform(shelved, "unshelve", "ACTIVE")
        self.assertGPUs(shelved, self.recorded(shelved))
        # The same by the way back
        self.computes["host1"].stop()
        self.device_spec(aliases.ALL_A2)
        for leaving in self.look().leavings:
            self.giving_back().remember(leaving)
        self.assertEqual(self.recorded(moved), self.rows(moved))
        self.device_spec()
        self.take_driver()
        self.start_host("host2")
        self._migrate_server(moved)
        self._wait_for_state_change(moved, "VERIFY_RESIZE")
        self._revert_resize(moved)
        self.assertAdopted(moved, self.recorded(moved))
        self.assertGPUs(moved, self.recorded(moved))

    def test_one_that_is_suspended(self) -> None:
        """It stays stock Nova's, with its card, and is resumed under nova-gpu's driver."""
        server, other = self.boot_by_alias(), self.boot_by_alias()
        had, others = self.has(server), self.has(other)
        self.perform(server, "suspend", "SUSPENDED")
        self.change_driver()
        self.assertEqual(1, self.adopt())
        self.take_driver()
        self.period()
        self.assertAdopted(other, others)
        self.assertEqual(had, self.rows(server))
        self.assertInventory(used=1, reserved=1)
        self.perform(server, "resume", "ACTIVE")
        self.assertEqual(had, self.has(server))

    def test_what_an_evacuation_has_left(self) -> None:
        """The instance has cards at the same addresses on the other host."""
        server = self.boot_by_alias()
        (before,) = self.look("host1").holdings
        self.start_host("host2")
        self.force_down("host1")
        self._evacuate_server(server, expected_host="host2")
        self.assertRaises(NotTakenOver, self.takeover("host1").count, before)
        self.computes["host2"].stop()
        self.assertEqual(0, self.adopt("host2"))
        self.assertEqual(1, self.adopt("host1"))
        (holding,) = self.look("host1").holdings
        self.assertIn("it is on the host host2", str(holding.obstacles[0]))
        self.assertEqual({"host2": 1}, self.allocated(server))
        self.bring_back("host1")
        self.device_spec()
        self.take_driver()
        self._start_server(server)
        self.assertGPUs(server, self.recorded(server), "host2")
