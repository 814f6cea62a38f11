# SPDX-License-Identifier: Apache-2.0
"""Which cards are whose, by the records of stock Nova and of nova-gpu, and what is always true."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fixtures
from lxml import etree
from nova import objects
from nova.compute import task_states

from nova_gpu.conf import CONF
from nova_gpu.core import names
from nova_gpu.core.model import GPU
from nova_gpu.virt.lifecycle import cleaning
from nova_gpu_migrate.virt import providers
from tests.fixtures import hosts
from tests.functional import aliases, kvm, leftovers, stock
from tests.functional.base import Server

_NIC = "0000:06:00.0"
NIC = {"vendor_id": "8086", "product_id": "1533"}
_TAKEN = ("allocated", "claimed")
_RESIZES = task_states.resizing_states


class HeldTestBase(stock.StockTestBase):
    """A host whose nova-compute is of either driver.

    ``is_stock``: whether it is stock Nova's now. ``own``: by instance, the GPUs that it has, and
    keeps while nothing moves it. ``failed``: the instances that Nova has given up to move.
    """

    is_stock: bool

    def setUp(self) -> None:
        self.own: dict[str, list[str]] = {}
        self.failed: set[str] = set()
        super().setUp()

    def _setup_compute_service(self) -> None:
        self.take_options()

    def take_options(self, *, is_stock: bool | None = None) -> None:
        """Take the options of stock Nova's driver or nova-gpu's; by default those of now."""
        is_stock = self.is_stock if is_stock is None else is_stock
        self.flags(compute_driver=stock.STOCK if is_stock else stock.OURS)
        self.give_to(is_stock=is_stock)

    def give_to(self, *, is_stock: bool) -> None:
        """Take the options by which stock Nova has the GPUs, or nova-gpu."""
        raise NotImplementedError

    def words(self, count: int, *, is_stock: bool, and_more: bool = False) -> dict[str, str]:
        """Return a flavor's properties for *count* GPUs, and for something else of Nova's."""
        raise NotImplementedError

    def by_domain(self) -> dict[str, set[str]]:
        """Return by instance the GPUs that its domain has."""
        raise NotImplementedError

    def check(self) -> None:
        """Check what is always true, whatever was interrupted."""
        raise NotImplementedError

    def check_end(self) -> None:
        """Check that every GPU is of the instance that has it, or free and offered."""
        raise NotImplementedError

    def expect_free_are_clean(self) -> None:
        """Check what stock Nova is given, which cleans nothing."""

    def request_spec(self, server: Server) -> objects.RequestSpec | None:
        """Return the request by which the instance is scheduled, ``None`` if it is of no use.

        nova-conductor writes the flavor of a resize into it as soon as a host is chosen, and leaves
        it there if that host refuses.
        """
        spec = objects.RequestSpec.get_by_instance_uuid(self.context, server["id"])
        flavor = self.instance(server).flavor
        return spec if spec.flavor.flavorid == flavor.flavorid else None

    def gpus_of(self, server: Server) -> list[str]:
        return sorted(self.by_domain().get(server["id"], ()))

    def tearDown(self) -> None:
        """Leave everything as it is: :meth:`check_end` has seen it."""
        super(leftovers.LeavesNothing, self).tearDown()

    def _instances(self) -> objects.InstanceList:
        attributes = ["resources", "migration_context"]
        return objects.InstanceList.get_by_filters(
            self.context, {"deleted": False}, expected_attrs=attributes
        )

    def _written_down(self, instance: objects.Instance) -> Iterator[str]:
        """Yield what ``instance.resources`` has of this host, of both ends of a move."""
        # What is offloaded, and what has moved, keeps what it had written down.
        is_here = instance.host == "host1" and instance.vm_state != "shelved_offloaded"
        resource_lists = [instance.resources] if is_here else []
        is_moving = instance.vm_state == "resized" or (
            instance.vm_state in ("active", "stopped") and instance.task_state in _RESIZES
        )
        if is_moving and (moving := instance.migration_context) is not None:
            resource_lists += [moving.old_resources, moving.new_resources]
        yield from (item.identifier for items in resource_lists for item in items or ())

    def _check_own(self, domains: Mapping[str, set[str]], instances: objects.InstanceList) -> None:
        states = {instance.uuid: instance.vm_state for instance in instances}
        for uuid, gpus in list(self.own.items()):
            state = states.get(uuid)
            if state is None:
                del self.own[uuid]
            elif state == "active":
                self.assertEqual(gpus, sorted(domains.get(uuid, ())), f"GPUs of {uuid}")


class HeldCardsTestBase(HeldTestBase):
    """Four cards and a network function, by an alias or by nova-gpu."""

    def setUp(self) -> None:
        # By card: the instance that has had it since it was cleaned
        self.dirty: dict[str, str] = {}
        super().setUp()
        aliases = [*CONF.pci.alias, json.dumps({**NIC, "name": "nic"})]
        self.flags(alias=aliases, group="pci")
        self.useFixture(fixtures.MockPatchObject(cleaning.Cleaning, "clean", self._cleaned()))

    def start_host(self, name: str = "host1", machine: str = "pairs-4", **kwargs: Any) -> None:
        functions = aliases.devices()
        ids = {"vend_id": NIC["vendor_id"], "prod_id": NIC["product_id"]}
        functions.add_device("PCI", bus=6, slot=0, function=0, iommu_group=9, numa_node=0, **ids)
        super().start_host(name, machine, pci_info=functions)

    def prepare(self, host: hosts.Host) -> None:
        super().prepare(host)
        host.add_device(_NIC, *NIC.values(), class_code=0x020000)

    def give_to(self, *, is_stock: bool) -> None:
        cards = [aliases.ALL_A2] if is_stock else []
        self.device_spec(*cards, json.dumps(NIC))

    def words(self, count: int, *, is_stock: bool, and_more: bool = False) -> dict[str, str]:
        by_alias = ["nic:1"] * and_more + [f"a2:{count}"] * is_stock
        properties = {} if is_stock else {names.GPUS: f"= {count}"}
        return properties | ({names.PCI_ALIAS: ",".join(by_alias)} if by_alias else {})

    def _cleaned(self) -> Callable[[cleaning.Cleaning, GPU], bool]:
        clean = cleaning.Cleaning.clean

        def cleaned(this: cleaning.Cleaning, card: GPU) -> bool:
            done = clean(this, card)
            if done:
                self.dirty.pop(str(card.address), None)
            return done

        return cleaned

    # Who says what

    def by_domain(self) -> dict[str, set[str]]:
        """Return by instance the cards that its domain has, whichever of their functions."""
        cards_by_uuid: dict[str, set[str]] = {}
        for domain in self._domains("host1"):
            for source in etree.fromstring(domain.XMLDesc(0)).iterfind("devices/hostdev/source"):
                place = source.find("address")
                address = kvm.address(source.getparent())
                assert place is not None
                card = f"{address.rpartition('.')[0]}.0"
                if card in kvm.ALL:
                    cards_by_uuid.setdefault(domain.UUIDString(), set()).add(card)
        return cards_by_uuid

    def claims(self) -> dict[str, dict[str, set[str]]]:
        """Return by card and instance who says that it is the instance's."""
        return self._claims(self.by_domain(), self._instances())

    def _claims(
        self, domains: Mapping[str, set[str]], instances: objects.InstanceList
    ) -> dict[str, dict[str, set[str]]]:
        """Return by card and instance who says that it is the instance's."""
        claims_by_card: dict[str, dict[str, set[str]]] = {card: {} for card in kvm.ALL}

        def claim(card: str, uuid: str, source: str) -> None:
            if card in claims_by_card:
                claims_by_card[card].setdefault(uuid, set()).add(source)

        for uuid, cards in domains.items():
            for card in cards:
                claim(card, uuid, "domain")
        for row in self._rows():
            if row.status in _TAKEN:
                claim(row.address, str(row.instance_uuid), "row")
        for instance in instances:
            for card in self._written_down(instance):
                claim(card, instance.uuid, "resources")
        for provider, allocations in self._of_stock().items():
            for consumer in allocations:
                claim(provider, self._instance_of(consumer), "Placement")
        return claims_by_card

    def _rows(self) -> list[Any]:
        node = objects.ComputeNode.get_by_host_and_nodename(self.context, "host1", "host1")
        return [
            row
            for row in objects.PciDeviceList.get_by_compute_node(self.context, node.id)
            if row.address in kvm.ALL
        ]

    def are_several_free(self) -> bool:
        return [row.status for row in self._rows()].count("available") > 1

    def _providers(self) -> list[dict[str, Any]]:
        url = f"/resource_providers?in_tree={self.compute_rp_uuids['host1']}"
        resource_providers: list[dict[str, Any]] = self.placement.get(url, version="1.14").body[
            "resource_providers"
        ]
        return resource_providers

    def _allocations(self, provider: str) -> dict[str, Any]:
        body = self.placement.get(f"/resource_providers/{provider}/allocations").body
        return {uuid: allocation["resources"] for uuid, allocation in body["allocations"].items()}

    def _of_stock(self) -> dict[str, dict[str, Any]]:
        """Return the allocations of stock Nova's providers, by card."""
        allocations = {}
        for provider in self._providers():
            function = providers.function_of(provider["name"])
            if function is not None and str(function) in kvm.ALL:
                allocations[str(function)] = self._allocations(provider["uuid"])
        return allocations

    def _instance_of(self, consumer: str) -> str:
        for migration in objects.MigrationList.get_by_filters(self.context, {}):
            if migration.uuid == consumer:
                return str(migration.instance_uuid)
        return consumer

    def check(self) -> None:
        domains = self.by_domain()
        instances = self._instances()
        claims_by_card = self._claims(domains, instances)
        for card, claims in claims_by_card.items():
            self.assertLessEqual(len(claims), 1, f"{card} is of two: {claims}")
        self._check_dirty(claims_by_card)
        taken = {card for card, claims in claims_by_card.items() if claims}
        for uuid in self.groups().values():
            if self._get_provider_inventory(uuid):  # none before the rest of the request
                total, reserved, used = self.counts(uuid, "PGPU")
                self.assertLessEqual(
                    total - reserved - used, len(kvm.ALL) - len(taken), f"offered: {claims_by_card}"
                )
        if self.is_stock:
            for row in self._rows():
                if row.status == "available":
                    self.assertEqual(
                        {}, claims_by_card[row.address], f"stock Nova offers {row.address}"
                    )
        self._check_own(domains, instances)

    def _check_dirty(self, claims_by_card: dict[str, dict[str, set[str]]]) -> None:
        for card, claims in claims_by_card.items():
            for uuid, by in claims.items():
                if "domain" not in by:
                    continue
                before = self.dirty.get(card)
                if before != uuid and not self.is_stock:
                    self.assertIsNone(before, f"{uuid} has {card} uncleaned: {claims}")
                self.dirty[card] = uuid

    def expect_free_are_clean(self) -> None:
        claimed = {card for card, claims in self.claims().items() if claims}
        self.assertEqual(set(), self.dirty.keys() - claimed, "stock Nova gets it uncleaned")

    def check_end(self) -> None:
        claims_by_card = self.claims()
        taken = {card for card, claims in claims_by_card.items() if claims}
        domains = self.by_domain()
        resized = any(server["status"] == "VERIFY_RESIZE" for server in self._servers())
        for server in self._servers():
            # What Nova has given up to move it leaves as it was then.
            if server["status"] in ("ACTIVE", "SHUTOFF") and server["id"] not in self.failed:
                self._check_records(server, domains.get(server["id"], set()))
        sources = {
            by for claims in claims_by_card.values() for held in claims.values() for by in held
        }
        if self.is_stock:
            self.assertEqual({}, self.groups())
            self.assertNotIn("resources", sources)
            rows = {row.address: row for row in self._rows()}
            self.assertEqual(sorted(kvm.ALL), sorted(rows))
            for card, row in rows.items():
                self.assertEqual(card not in taken, row.status == "available", card)
            if self.REPORTED:
                self.assertEqual(sorted(kvm.ALL), sorted(self._of_stock()))
                used = {card for card, allocations in self._of_stock().items() if allocations}
                self.assertEqual(taken, used)
            return
        self.assertTrue(sources <= {"domain", "resources"}, claims_by_card)
        self.assertEqual({}, self._of_stock())
        if not resized:
            self.assertInventory(total=4, used=len(taken))
        self.assertEqual((), self.judge().differences)

    def _check_records(self, server: Server, cards: set[str]) -> None:
        wanted = server["flavor"]["extra_specs"]
        instance = self.instance(server)
        aliases = _aliases(instance.pci_requests)
        if (spec := self.request_spec(server)) is not None:
            words = (spec.flavor.extra_specs, _aliases(spec.pci_requests))
            self.assertEqual((wanted, aliases), words)
        counts = dict.fromkeys(("a2", "nic"), 0)
        if "pci_passthrough:alias" in wanted:
            for text in wanted["pci_passthrough:alias"].split(","):
                name, _, number = text.partition(":")
                counts[name] += int(number)
        self.assertEqual(sorted(name for name, count in counts.items() if count), aliases)
        own = int(wanted["gpus"].removeprefix("= ")) if "gpus" in wanted else 0
        self.assertEqual(0, own if self.is_stock else counts["a2"], wanted)
        self.assertEqual(own + counts["a2"], len(cards), f"cards of {server['id']}")
        self.assertEqual({"host1": own} if own else {}, self.allocated(server))
        self.assertEqual(sorted(cards) if own else [], self.recorded(server))


def _aliases(requests: objects.InstancePCIRequests) -> list[str]:
    return sorted(request.alias_name for request in requests.requests)
