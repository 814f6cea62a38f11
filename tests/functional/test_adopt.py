# SPDX-License-Identifier: Apache-2.0
"""Instances that have cards by stock Nova are taken over as they run."""

from __future__ import annotations

from typing import Any
from unittest import mock

from nova import objects

from nova_gpu.core import exception as own
from nova_gpu.stock.core.holding import NotTakenOver
from nova_gpu.stock.virt import adoption
from tests.functional import kvm, stock


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

    def test_placement_with_a_conflict(self) -> None:
        """Others write to the host's providers again and again."""
        server = self.boot_by_alias()
        self.change_driver()
        takeover, (holding,) = self.takeover(), self.look().holdings
        read = takeover._client.get_allocations_for_provider_tree

        def and_then_others_write(*args: Any) -> Any:
            allocations = read(*args)
            url = f"/resource_providers/{self.compute_rp_uuids['host1']}/inventories"
            inventories = self.placement.get(url).body
            self.placement.put(url, inventories)  # a new generation
            return allocations

        with mock.patch.object(
            takeover._client, "get_allocations_for_provider_tree", and_then_others_write
        ):
            refused = self.assertRaises(own.PlacementFailed, takeover.count, holding)
        self.assertIn("changed the providers during each of 3 attempts", str(refused))
        self.assertEqual({}, self.allocated(server))
        self.finish()
        self.assertAdopted(server, self.recorded(server))

    def test_a_card_that_only_placement_counts(self) -> None:
        """Nova counts one beside that of a resize, which it has taken from another provider."""
        server = self.boot_by_alias()
        had = self.has(server)
        (free, *_) = sorted({*kvm.ALL} - {*had})
        root = self.compute_rp_uuids["host1"]
        body = {"name": f"host1_{free.upper()}", "parent_provider_uuid": root}
        provider = self.placement.post("/resource_providers", body, version="1.20").body["uuid"]
        inventories = {"CUSTOM_PCI": {"total": 1}}
        self.placement.put("/resource_classes/CUSTOM_PCI", None, version="1.7")
        url = f"/resource_providers/{provider}/inventories"
        body = {"inventories": inventories, "resource_provider_generation": 0}
        self.placement.put(url, body)
        url = f"/allocations/{server['id']}"
        counted = self.placement.get(url, version="1.28").body
        counted["allocations"][provider] = {"resources": {"CUSTOM_PCI": 1}}
        self.placement.put(url, counted, version="1.28")
        self.change_driver()
        self.finish()
        self.assertAdopted(server, had)
        self.assertNotIn(provider, self.allocations(server))

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
