# SPDX-License-Identifier: Apache-2.0
"""Instances that have cards by stock Nova are taken over as they run."""

from __future__ import annotations

import itertools
import json
from typing import Any
from unittest import mock

from nova import objects
from oslo_db import exception as db_exc

from nova_gpu.conf import CONF
from nova_gpu.core import exception as own
from nova_gpu.stock.core.holding import NotTakenOver
from nova_gpu.stock.virt import adoption
from tests.functional import kvm, stock, test_kvm_aliases
from tests.functional.base import Server

NIC = {"vendor_id": "8086", "product_id": "1533"}


class Adopting(stock.StockTestBase):
    HOSTS = ("host1",)

    def change_driver(self) -> None:
        """Stop nova-compute of host1, and make its options nova-gpu's."""
        self.computes["host1"].stop()
        self.device_spec()

    def finish(self) -> None:
        """Take over what is left, and start nova-compute."""
        self.assertEqual(0, self.adopt())
        self.take_driver()
        self.period()

    def assertAdopted(self, server: Server, cards: list[str]) -> None:
        """Check that Nova and Placement count *cards*, and that nothing of stock Nova is left."""
        self.assertEqual(cards, self.recorded(server))
        self.assertEqual({"host1": len(cards)}, self.allocated(server))
        self.assertEqual([], self.rows(server))
        instance = objects.Instance.get_by_uuid(
            self.context, server["id"], expected_attrs=["flavor", "pci_requests"]
        )
        spec = objects.RequestSpec.get_by_instance_uuid(self.context, server["id"])
        for kept in (instance, spec):
            self.assertEqual(f"= {len(cards)}", kept.flavor.extra_specs["gpus"])
            self.assertNotIn("pci_passthrough:alias", kept.flavor.extra_specs)
            self.assertEqual([], list(kept.pci_requests.requests))


class AdoptTest(Adopting):
    def test_guests_do_not_notice(self) -> None:
        first, second = self.boot_by_alias(), self.boot_by_alias()
        had = {server["id"]: self.has(server) for server in (first, second)}
        before = {server["id"]: self.guest(server).XMLDesc(0) for server in (first, second)}
        self.change_driver()
        self.assertEqual(0, self.adopt())
        self.assertInventory(total=4, reserved=2, used=2)  # until nova-compute offers the others
        self.finish()
        for server in (first, second):
            self.assertEqual(before[server["id"]], self.guest(server).XMLDesc(0))
            self.assertAdopted(server, had[server["id"]])
        self.assertInventory(total=4, used=2)
        self.assertEqual((), self.judge().differences)
        self.boot_refused(self.gpu_flavor(3))
        others = self.recorded(self.boot(self.gpu_flavor(2)))
        self.assertEqual(sorted(kvm.ALL), sorted(itertools.chain(others, *had.values())))

    def test_a_stopped_instance(self) -> None:
        server = self.boot_by_alias()
        had = self.has(server)
        self._stop_server(server)
        self.change_driver()
        self.finish()
        self.assertAdopted(server, had)
        self._start_server(server)
        self.assertGPUs(server, had)

    def test_an_instance_that_has_become_busy(self) -> None:
        """Refuse an instance that its owner resizes after the plan, and take over the other."""
        server, other = self.boot_by_alias(), self.boot_by_alias()
        had = self.has(server)
        holdings = self.look().holdings
        self.change_driver()
        takeover = self.takeover()
        instance = self.instance(server)
        instance.task_state = "resize_prep"
        instance.save()
        for holding in holdings:
            steps = [step.do for step in takeover.steps(holding)]
            if holding.instance.uuid == server["id"]:
                for step in steps[:2]:
                    self.assertRaises(NotTakenOver, step)
            else:
                for step in steps:
                    step()
        self.assertEqual(had, self.rows(server))
        self.assertEqual([], self.recorded(server))
        self.assertEqual([], self.rows(other))
        instance.task_state = None
        instance.save()
        self.finish()
        self.assertAdopted(server, had)

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

    def test_records_that_are_gone_in_part(self) -> None:
        """Nova removes them one by one; the command is killed between two."""
        server = self.boot(self.flavor(**{"pci_passthrough:alias": "a2:2"}))
        had = self.has(server)
        self.change_driver()
        (holding,) = self.look().holdings
        for step in list(self.takeover().steps(holding))[:3]:
            step.do()
        row = objects.PciDeviceList.get_by_instance_uuid(self.context, server["id"])[0]
        row.status, row.instance_uuid, row.request_id = "available", None, None
        row.save()
        self.finish()
        self.assertAdopted(server, had)
        self.assertInventory(total=4, used=2)

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

    def test_gpus_by_nova_gpu_as_well(self) -> None:
        self.device_spec(test_kvm_aliases.spec_of("3b"))
        self.take_driver()
        server = self.boot(self.flavor(**{"pci_passthrough:alias": "a2:1", "gpus": "= 1"}))
        self.assertInventory(total=3, used=1)
        self.change_driver()
        self.assertEqual(1, self.adopt())
        self.assertEqual({"host1": 1}, self.allocated(server))
        self.assertEqual(1, len(self.rows(server)))
        self.take_driver()

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

    def test_a_network_function_besides(self) -> None:
        """It stays the instance's by stock Nova, and no other instance gets it."""
        self.flags(alias=[*CONF.pci.alias, json.dumps({**NIC, "name": "nic"})], group="pci")
        cards = test_kvm_aliases.devices()
        ids = {"vend_id": NIC["vendor_id"], "prod_id": NIC["product_id"]}
        cards.add_device("PCI", bus=5, slot=0, function=0, iommu_group=9, numa_node=0, **ids)
        self.device_spec(test_kvm_aliases.ALL_A2, json.dumps(NIC))
        self.start_host("host2", pci_info=cards)
        self.hosts["host2"].add_device("0000:05:00.0", *NIC.values(), class_code=0x020000)
        server = self.boot(self.flavor(**{"pci_passthrough:alias": "nic:1,a2:1"}), host="host2")
        self.assertEqual(2, len(self.rows(server)))
        self.computes["host2"].stop()
        self.device_spec(json.dumps(NIC))
        self.assertEqual(0, self.adopt("host2"))
        self.take_driver()
        self.assertEqual(["0000:05:00.0"], self.rows(server))
        self._reboot_server(server, hard=True)
        self.assertEqual(["0x05"], self.by_alias(server, "host2"))
        self.assertEqual(1, len(self.recorded(server)))
        self.boot_refused(self.flavor(**{"pci_passthrough:alias": "nic:1"}))

    def test_a_conductor_without_the_apis_database(self) -> None:
        """That of a cell has no request specs: nothing is changed."""
        server = self.boot_by_alias()
        had = self.has(server)
        self.change_driver()
        error = db_exc.CantStartEngineError("no connection")
        with mock.patch.object(objects.RequestSpec, "get_by_instance_uuid", side_effect=error):
            self.assertEqual(1, self.adopt())
        self.assertEqual((had, {}), (self.rows(server), self.allocated(server)))
        self.finish()
        self.assertAdopted(server, had)
