# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import unittest
from collections.abc import Mapping
from typing import Any

from nova_gpu.core.flavor import request
from nova_gpu.core.model import GPU, PciAddress, Product
from nova_gpu.core.topology import affinity
from nova_gpu.core.unavailability import Scope, Source, Unavailable
from nova_gpu.core.vgpu.vgpu import DividedCard, Parent, Slot, VGPUKind, VGPUType, device_uuid
from nova_gpu_migrate.core import adoption_plan
from nova_gpu_migrate.core.former import AliasRequest
from nova_gpu_migrate.core.stock_holding import (
    SHELVED,
    Alias,
    Domain,
    Hardware,
    StockDelivery,
    StockHolding,
    StockInstance,
    StockMdev,
    StockProvider,
)

A2 = Product("10de", "25b6", "A2", "ampere", 15360)
L4 = Product("10de", "27b8", "L4", "ada", 23034)
NAMELESS = Product("1234", "5678")
ALIAS = {"pci_passthrough:alias": "a2:1"}
MDEV = "b2107403-110c-45b0-af87-32cc91597b8a"
OTHER, MINE = "the-other", "6f70656e-7374-4163-8b20-697320667265"
SLOT = Slot(PciAddress(0, 1, 0, 0), "nvidia-35", 0)


def address(bus: int, function: int = 0) -> PciAddress:
    return PciAddress(0, bus, 0, function)


def gpu(bus: int, product: Product = A2, node: int = 0) -> GPU:
    audio = (address(bus, 1),)
    return GPU(address(bus), product, 0x030200, node, pci_root=f"pci:{bus}", companions=audio)


def hardware(*gpus: GPU, **changes: Any) -> Hardware:
    by_address = {card.address: card for card in gpus}
    functions = {function: card.address for card in gpus for function in card.functions}
    return dataclasses.replace(Hardware(by_address, {}, functions, {}), **changes)


def divided(parent: PciAddress, *types: str) -> DividedCard:
    known = {type_id: VGPUType(type_id) for type_id in types or ("nvidia-35",)}
    return DividedCard(known, {parent: Parent(VGPUKind.MEDIATED, {}, {})})


def mediating(**changes: Any) -> Hardware:
    made = {MDEV: StockMdev(address(1), address(1), "nvidia-35")}
    changes = {"mediated": made, "parts": {address(1): divided(address(1))}} | changes
    return hardware(gpu(1), **changes)


def instance(*recorded: PciAddress, **changes: Any) -> StockInstance:
    own = StockInstance("mine", "a2.small", ALIAS, "active", recorded=dict.fromkeys(recorded, "a2"))
    return dataclasses.replace(own, **changes)


def has(*functions: PciAddress, mediated: str | None = None) -> Domain:
    return Domain(frozenset(functions), frozenset([mediated] if mediated else []))


ONE, AUDIO, NIC = address(1), address(1, 1), address(9)


class JudgeTest(unittest.TestCase):
    def judge(
        self,
        own: StockInstance,
        host: Hardware,
        *,
        domain: Domain | None = None,
        others: Mapping[str, Domain] | None = None,
    ) -> StockHolding:
        mine = domain or has(*own.recorded)
        holding = adoption_plan.judge(own, {"mine": mine, **(others or {})}, host)
        assert holding
        return holding

    def assertObstacle(self, holding: StockHolding, *parts: str) -> None:
        (obstacle,) = holding.obstacles
        for part in parts:
            self.assertIn(part, str(obstacle))
        self.assertNotEqual("", obstacle.remedy)

    def test_a_card_by_alias(self) -> None:
        for states in ({}, {"vm_state": "stopped"}, {"vm_state": "paused"}):
            holding = self.judge(instance(address(1), **states), hardware(gpu(1), gpu(2)))
            self.assertEqual([], list(holding.obstacles))
            self.assertEqual(
                ((StockDelivery.ALIAS,), (address(1),)), (holding.deliveries, holding.devices)
            )
            self.assertEqual({"gpus": "= 1", "gpu:model": "s== A2"}, holding.set)
            self.assertEqual(("pci_passthrough:alias",), holding.unset)

    def test_a_companion_is_the_card(self) -> None:
        """Nova's alias may give the functions of a card one by one."""
        holding = self.judge(instance(address(1), address(1, 1)), hardware(gpu(1)))
        self.assertEqual((address(1),), holding.devices)
        self.assertEqual("= 1", holding.set["gpus"])
        self.assertEqual([], list(holding.obstacles))

    def test_a_card_that_no_guest_can_have(self) -> None:
        for_all = Unavailable("its group is shared", "use a slot", Source.HOST, Scope.ALL)
        host = hardware(gpu(1), reasons={address(1): (for_all,)})
        holding = self.judge(instance(address(1)), host)
        self.assertObstacle(holding, "its group is shared", "use a slot")
        for_new = dataclasses.replace(for_all, scope=Scope.NEW)
        host = hardware(gpu(1), reasons={address(1): (for_new,)})
        self.assertEqual([], list(self.judge(instance(address(1)), host).obstacles))

    def test_a_virtual_function(self) -> None:
        function, other = PciAddress(0, 1, 0, 4), PciAddress(0, 1, 0, 5)
        host = hardware(gpu(1))
        functions = {**host.cards_by_function, function: address(1), other: address(1)}
        host = dataclasses.replace(host, cards_by_function=functions)
        holding = self.judge(instance(function), host)
        self.assertObstacle(holding, "0000:01:00.4", "would not offer")
        typed = Parent(VGPUKind.TYPED, {}, {"nvidia-35": 1})
        for parent, type_id in ((typed, "nvidia-35"), (Parent(VGPUKind.PLAIN, {}, {}), "vf")):
            parts = DividedCard({type_id: VGPUType(type_id)}, {function: parent, other: parent})
            divided_host = dataclasses.replace(host, parts={address(1): parts})
            own = instance(function, other)
            holding = self.judge(own, divided_host)
            self.assertEqual(((), ()), (holding.obstacles, holding.cards))
            slots = {Slot(function, type_id, 0): address(1) for function in (function, other)}
            self.assertEqual((slots, {function, other}), (holding.slots, holding.functions))
            self.assertEqual({"vgpus": "= 2", "vgpu_type": f"s== {type_id}"}, holding.set)
            attached = has(function, other)
            holding = self.judge(instance(function), divided_host, domain=attached)
            self.assertObstacle(holding, "its domain has 0000:01:00.5", "does not count")
            holding = self.judge(own, divided_host, others={OTHER: has(other)})
            self.assertObstacle(holding, "0000:01:00.5", OTHER)
            # What nova-gpu has given is not stock Nova's.
            guest = instance(slots=frozenset(slots))
            self.assertIsNone(adoption_plan.judge(guest, {"mine": attached}, divided_host))

    def test_records_that_are_gone_in_part(self) -> None:
        """All of its cards stay its own, though Nova's record of one is left."""
        counted = frozenset([address(1), address(2)])
        own = instance(recorded={address(2): None}, counted=counted)
        holding = self.judge(own, hardware(gpu(1), gpu(2)), domain=has(*counted))
        self.assertEqual(("= 2", []), (holding.set["gpus"], list(holding.obstacles)))
        self.assertEqual(frozenset([address(2)]), holding.functions)
        holding = self.judge(own, hardware(gpu(2)), domain=has(*counted))
        self.assertObstacle(holding, "0000:01:00.0", "does not have")

    def test_devices_of_another_kind(self) -> None:
        holding = self.judge(instance(recorded={ONE: "a2", NIC: "nic"}), hardware(gpu(1)))
        self.assertEqual((frozenset([ONE]), ()), (holding.functions, holding.obstacles))

    def test_obstacles(self) -> None:
        """What it is busy with, records that differ, and what has no words of nova-gpu"""
        alone, both = hardware(gpu(1)), hardware(gpu(1), gpu(2, L4))
        moved = instance(recorded={ONE: None}, migration="finished")
        for own, host, more, *parts in (
            (instance(ONE, task_state="deleting"), alone, {}, "deleting", "wait"),
            (instance(ONE, migration="pre-migrating"), alone, {}, "migration", "pre-", "wait"),
            (instance(ONE, vm_state="error"), alone, {}, "state is error"),
            (instance(ONE, vm_state="suspended"), alone, {}, "state is suspended"),
            # Of the new flavor are the requests, and the domain is on the other host.
            (moved, alone, {"domain": has(ONE)}, "a migration of it is finished", "wait"),
            (moved, alone, {"domain": Domain()}, "a migration of it is finished", "wait"),
            (instance(ONE), alone, {"domain": Domain()}, f"counts {ONE}", "no such device"),
            (instance(), alone, {"domain": has(ONE)}, "does not count", str(ONE), "detach"),
            (instance(ONE), alone, {"others": {OTHER: has(AUDIO)}}, str(AUDIO), OTHER),
            (instance(ONE, address(2)), both, {}, "10de:25b6", "10de:27b8", "resize"),
            (instance(ONE, counted=frozenset([address(2)])), both, {}, "by nova-gpu as well"),
            (instance(ONE, slots=frozenset([SLOT])), both, {}, "by nova-gpu as well"),
            (instance(ONE, NIC), alone, {}, "the alias a2", str(NIC)),
            (instance(ONE, elsewhere="host2"), alone, {}, "on the host host2", "evacuation"),
            (instance(recorded={ONE: None}), alone, {}, "does not say by which alias", "resize"),
        ):
            with self.subTest(own, more=more):
                holding = self.judge(own, host, **more)  # type: ignore[arg-type]
                self.assertObstacle(holding, *parts)

    def test_mediated_devices(self) -> None:
        own = instance(extra_specs={"resources:VGPU": "1", "trait:CUSTOM_BIG": "x", "hw:x": "y"})
        holding = self.judge(own, mediating(), domain=has(mediated=MDEV))
        self.assertEqual((StockDelivery.MEDIATED,), holding.deliveries)
        slot = Slot.of_device(address(1), "nvidia-35", MDEV)
        self.assertEqual((slot,), holding.devices)
        self.assertEqual({"vgpus": "= 1", "vgpu_type": "s== nvidia-35"}, holding.set)
        self.assertEqual(("resources:VGPU",), holding.unset)
        self.assertEqual((), holding.obstacles)
        guest = instance(slots=frozenset([slot]))
        self.assertIsNone(adoption_plan.judge(guest, {"mine": has(mediated=MDEV)}, mediating()))

    def test_vgpus_that_it_lacks(self) -> None:
        specs = {"resources:VGPU": "1"}
        own = instance(extra_specs=specs)
        holding = self.judge(own, mediating())
        self.assertObstacle(holding, "asks for vGPUs, and its domain has none", "shelve")
        for other, domain in (
            (own, has(mediated=MDEV)),
            (dataclasses.replace(own, slots=frozenset([SLOT])), has()),
            (dataclasses.replace(own, extra_specs=specs | {"vgpus": "= 1"}), has()),
            (dataclasses.replace(own, extra_specs={}), has()),
        ):
            judgement = adoption_plan.judge(other, {"mine": domain}, mediating())
            self.assertEqual([], list(judgement.obstacles) if judgement else [], other)

    def test_what_the_flavor_says_of_mediated_devices(self) -> None:
        """The operator has named another class, and told cards from each other by a trait."""
        stock = StockProvider("", frozenset(["CUSTOM_Q"]), frozenset(["CUSTOM_BIG"]))
        words = ("resources1:CUSTOM_Q", "trait1:CUSTOM_BIG")
        others = {"resources2:VGPU": "1", "trait2:CUSTOM_SMALL": "required"}
        own = instance(extra_specs=dict.fromkeys(words, "1") | others)
        host = mediating(providers={address(1): stock})
        self.assertEqual(words, self.judge(own, host, domain=has(mediated=MDEV)).unset)

    def test_a_mediated_device_of_nova_gpu(self) -> None:
        """Its domain still says at which slot nova-gpu has made it."""
        made = device_uuid(MINE, SLOT)
        device = StockMdev(address(1), address(1), "nvidia-35")
        host = mediating(mediated={made: device})
        domain = dataclasses.replace(has(mediated=made), slots=frozenset([SLOT]))
        holding = adoption_plan.judge(instance(uuid=MINE), {MINE: domain}, host)
        assert holding
        self.assertEqual((SLOT,), holding.devices)

    def test_mediated_devices_that_stay(self) -> None:
        own, domain = instance(), has(mediated=MDEV)
        for changes, *parts in (
            ({"parts": {}}, "no vGPUs at 0000:01:00.0"),
            ({"parts": {address(1): divided(address(1), "nvidia-36")}}, "nvidia-35", "vgpu_types"),
        ):
            with self.subTest(changes):
                host = mediating(**changes)  # type: ignore[arg-type]
                self.assertObstacle(self.judge(own, host, domain=domain), *parts)
        shared = self.judge(own, mediating(), domain=domain, others={OTHER: domain})
        self.assertObstacle(shared, MDEV, OTHER)
        other = "4b20d080-1b54-4048-85b3-a6a62d165c01"
        both = {
            uuid: StockMdev(address(1), address(1), f"nvidia-{n}")
            for n, uuid in ((35, MDEV), (36, other))
        }
        parts_ = {address(1): divided(address(1), "nvidia-35", "nvidia-36")}
        host = mediating(mediated=both, parts=parts_)
        holding = self.judge(own, host, domain=Domain(frozenset(), frozenset(both)))
        self.assertObstacle(holding, "several types", "nvidia-35, nvidia-36")

    def test_what_the_flavor_has_besides(self) -> None:
        alias = {"pci_passthrough:alias": "nic:2, a2:1", "hw:x": "y"}
        holding = self.judge(instance(address(1), extra_specs=alias), hardware(gpu(1)))
        self.assertEqual("nic:2", holding.set["pci_passthrough:alias"])
        self.assertEqual((), holding.unset)
        self.assertEqual(frozenset(["a2"]), holding.aliases)

    def test_an_alias_that_was_renamed(self) -> None:
        """In [pci]alias, and in the flavor, but not in what Nova has recorded."""
        other = {"recorded": {address(1): "a2", address(9): "nic"}}
        for text, changes, left in (("gpu-a2:1", {}, None), ("gpu-a2:1,nic:2", other, "nic:2")):
            own = instance(address(1), extra_specs={"pci_passthrough:alias": text}, **changes)
            holding = self.judge(own, hardware(gpu(1)), domain=has(address(1)))
            self.assertEqual([], list(holding.obstacles))
            self.assertEqual(left, holding.set.get("pci_passthrough:alias"))
        specs = {"pci_passthrough:alias": "gpu-a2:1,net:2"}
        own = instance(address(1), extra_specs=specs, **other)
        holding = self.judge(own, hardware(gpu(1)), domain=has(address(1)))
        self.assertObstacle(holding, "asks by gpu-a2, net", "resize")

    def test_the_flavor_that_results(self) -> None:
        """It is held against the devices: the operator may have properties of the same names."""
        for more, *parts in (
            ({"vgpu_type": "none"}, "vgpu_type", "asks for no vGPU"),
            ({"vgpus": "1"}, "asks for 1 vGPUs, and the instance holds 0"),
            ({"gpu_arch": "Turing"}, "architecture ampere", "turing"),
            ({"gpu:memory_mib": ">= 20000"}, "memory_mib"),
            ({"trait:CUSTOM_GPU_ARCH_TURING": "required"}, "CUSTOM_GPU_ARCH_TURING"),
            ({"resources:PGPU": "2"}, "gpus"),
        ):
            with self.subTest(more):
                own = instance(address(1), extra_specs={**ALIAS, **more})
                self.assertObstacle(self.judge(own, hardware(gpu(1))), "would not fit", *parts)
        same = {"gpu_arch": "ampere", "gpus": "1", "hypervisor": "s== QEMU", "trait:X": "required"}
        own = instance(address(1), extra_specs={**ALIAS, **same})
        self.assertEqual((), self.judge(own, hardware(gpu(1))).obstacles)

    def test_what_is_different_afterwards(self) -> None:
        """The affinity of NUMA nodes, the isolation of vGPUs, and further functions."""
        audio = (address(1), address(1, 1))
        template = "by the policy {}, and not by {}"
        for policy, stated, default, left, domain, added, *parts in (
            (None, None, "legacy", "", audio, None),
            ("required", None, "legacy", "", audio, "required"),
            (None, None, "preferred", "", audio, "legacy"),
            ("required", None, "required", "", audio, None),
            # The flavor asks for something else, by an alias with a policy of its own.
            (None, None, "preferred", "nic:1", audio, None, template.format("preferred", "legacy")),
            # It was moved by Nova, which forgets what the flavor states.
            (None, "required", "legacy", "", audio, None, template.format("required", "legacy")),
            ("required", None, None, "", audio, None),
            (None, None, None, "", audio[:1], None, "next start gives its guest 0000:01:00.1"),
        ):
            with self.subTest(policy=policy, stated=stated, default=default, left=left):
                own = instance(
                    address(1),
                    extra_specs={"pci_passthrough:alias": ",".join(filter(None, ("a2:1", left)))},
                    requests={
                        "a2": AliasRequest(({},), policy),
                        "nic": AliasRequest(({},), "required"),
                    },
                    stated_policy=stated,
                    default_policy=default,
                )
                holding = self.judge(own, hardware(gpu(1)), domain=has(*domain))
                self.assertEqual(added, holding.set.get(affinity.EXTRA_SPEC))
                self.assertEqual(len(parts), len(holding.remarks))
                for part, remark in zip(parts, holding.remarks, strict=True):
                    self.assertIn(part, remark)
        groups = {"resources1:VGPU": "1", "resources2:VGPU": "1", "group_policy": "isolate"}
        holding = self.judge(instance(extra_specs=groups), mediating(), domain=has(mediated=MDEV))
        self.assertIn("may be on one card", " ".join(holding.remarks))

    def test_what_is_kept(self) -> None:
        """What its words, its requests and its records were, through further runs."""
        requests = {"a2": AliasRequest(({"vendor_id": "10de"},), "required")}
        specs = {**ALIAS, "gpu:model": "s== A2", "hw:x": "y"}
        own = instance(address(1), extra_specs=specs, requests=requests)
        record = self.judge(own, hardware(gpu(1))).former
        assert record
        self.assertEqual(("a2.small", requests), (record.flavor, record.requests))
        self.assertEqual({**ALIAS, "gpu:model": "s== A2"}, record.specs)
        self.assertEqual({address(1): "a2"}, record.functions)
        taken = {"gpus": "= 1", "gpu:model": "s== A2", "hw:x": "y"}
        changes = {"counted": frozenset([address(1)]), "extra_specs": taken}
        for former in (record, None):
            own = instance(recorded={address(1): None}, former=former, **changes)
            self.assertEqual(former, self.judge(own, hardware(gpu(1))).former)
        again = instance(address(1), former=record, extra_specs=ALIAS, requests=requests)
        self.assertEqual(ALIAS, self.judge(again, hardware(gpu(1))).former.specs)  # type: ignore[union-attr]

    def test_a_shelved_instance(self) -> None:
        """Its words are kept, and there is no device to hold those that it gets against."""
        strict, any_ = (Alias(name, (address(1),), {"gpus": "= 1"}) for name in ("a2", "any"))
        requests = {name: AliasRequest(({"vendor_id": "10de"},)) for name in ("a2", "any", "nic")}
        words = {"pci_passthrough:alias": "a2:1, any:1,nic:1,a2:1", "hypervisor": "KVM"}
        own = instance(vm_state=SHELVED, extra_specs=words, requests=requests)
        item = adoption_plan.judge_shelved(own, [strict, any_])
        assert item and item.former
        self.assertEqual({"gpus": "= 3", "pci_passthrough:alias": "nic:1"}, item.set)
        self.assertEqual([], list(item.obstacles))
        alias = {"pci_passthrough:alias": words["pci_passthrough:alias"]}
        self.assertEqual((item.set, alias), (item.former.set, item.former.specs))
        self.assertEqual({"a2", "any"}, item.former.requests.keys())
        for specs, aliases, part in (
            ({"vgpus": "= 1"}, [strict, any_], "words of nova-gpu's: vgpus"),
            ({}, [strict, dataclasses.replace(any_, set={"vgpus": "= 1"})], "several products"),
        ):
            item = adoption_plan.judge_shelved(
                dataclasses.replace(own, extra_specs=words | specs), aliases
            )
            assert item
            (obstacle,) = item.obstacles
            self.assertIn(part, obstacle.reason)

    def test_what_was_taken_over_in_part(self) -> None:
        """Its record of stock Nova is left, and a takeover goes on from there."""
        own = instance(recorded={address(1): None}, counted=frozenset([address(1)]))
        holding = self.judge(own, hardware(gpu(1)))
        self.assertEqual((address(1),), holding.cards)
        self.assertEqual([], list(holding.obstacles))


class ChoiceTest(unittest.TestCase):
    HOST = hardware(gpu(1), gpu(2), gpu(3, node=1), gpu(4, node=1))

    def choice(self, *buses: int, others: Mapping[str, Domain] | None = None) -> Any:
        own = instance(*map(address, buses))
        domains = {"mine": has(*own.recorded), **(others or {})}
        holding = adoption_plan.judge(own, domains, self.HOST)
        assert holding
        return holding.choice

    def test_cards_of_two_nodes(self) -> None:
        choice = self.choice(1, 3)
        self.assertEqual((address(1), address(2)), choice.cards)
        self.assertEqual(("SYS", "NODE"), choice.paths)
        # As near as they can be, or where others have those that are nearer
        for buses in ((1,), (3, 4), (1, 2, 3)):
            self.assertIsNone(self.choice(*buses))
        others = {OTHER: has(address(2)), "one-more": has(address(4, 1))}
        self.assertIsNone(self.choice(1, 3, others=others))


class WordsTest(unittest.TestCase):
    def test_the_request_that_they_are(self) -> None:
        """nova-gpu reads from the words how many cards of which model are asked for."""
        awkward = Product("10de", "0001", "Quadro RTX 6000/8000 (Turing)", "turing")
        for product in (A2, L4, awkward, NAMELESS):
            with self.subTest(product.key):
                words = adoption_plan.words([product, product], ())
                parsed = request.of(words)
                self.assertEqual([2], [pci_request.count for pci_request in parsed.requests])
                self.assertEqual(product.name is not None, "gpu:model" in words)
                for demand in parsed.requests[0].demands:
                    self.assertTrue(demand.condition.matches(product.name), words)
