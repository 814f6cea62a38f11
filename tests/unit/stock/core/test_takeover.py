# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import unittest
from collections.abc import Mapping
from typing import Any

from nova_gpu.core.availability import Scope, Source, Unavailable
from nova_gpu.core.flavor import request
from nova_gpu.core.model import GPU, PciAddress, Product
from nova_gpu.stock.core import takeover
from nova_gpu.stock.core.holding import (
    Domain,
    Hardware,
    Holding,
    Instance,
    MediatedDevice,
    Way,
)

A2 = Product("10de", "25b6", "A2", "ampere", 15360)
L4 = Product("10de", "27b8", "L4", "ada", 23034)
NAMELESS = Product("1234", "5678")
ALIAS = {"pci_passthrough:alias": "a2:1"}
MDEV = "b2107403-110c-45b0-af87-32cc91597b8a"
OTHER = "the-other"


def address(bus: int, function: int = 0) -> PciAddress:
    return PciAddress(0, bus, 0, function)


def gpu(bus: int, product: Product = A2, node: int = 0) -> GPU:
    audio = (address(bus, 1),)
    return GPU(address(bus), product, 0x030200, node, pci_root=f"pci:{bus}", companions=audio)


def hardware(*gpus: GPU, **changes: Any) -> Hardware:
    by_address = {card.address: card for card in gpus}
    functions = {each: card.address for card in gpus for each in card.functions}
    return dataclasses.replace(Hardware(by_address, {}, functions, {}), **changes)


def instance(*recorded: PciAddress, **changes: Any) -> Instance:
    own = Instance("mine", "a2.small", ALIAS, "active", recorded=dict.fromkeys(recorded, "a2"))
    return dataclasses.replace(own, **changes)


def has(*functions: PciAddress, mediated: str | None = None) -> Domain:
    return Domain(frozenset(functions), frozenset([mediated] if mediated else []))


class JudgeTest(unittest.TestCase):
    def judge(
        self,
        own: Instance,
        host: Hardware,
        *,
        domain: Domain | None = None,
        others: Mapping[str, Domain] | None = None,
    ) -> Holding:
        mine = domain or has(*own.recorded)
        holding = takeover.judge(own, {"mine": mine, **(others or {})}, host)
        assert holding
        return holding

    def assertObstacle(self, holding: Holding, *parts: str) -> None:
        (obstacle,) = holding.obstacles
        for part in parts:
            self.assertIn(part, str(obstacle))
        self.assertNotEqual("", obstacle.remedy)

    def test_a_card_by_alias(self) -> None:
        for states in ({}, {"vm_state": "stopped"}, {"vm_state": "paused"}):
            holding = self.judge(instance(address(1), **states), hardware(gpu(1), gpu(2)))
            self.assertEqual([], list(holding.obstacles))
            self.assertEqual(((Way.ALIAS,), ("0000:01:00.0",)), (holding.ways, holding.devices))
            self.assertEqual({"gpus": "= 1", "gpu:model": "s== A2"}, holding.set)
            self.assertEqual(("pci_passthrough:alias",), holding.unset)

    def test_no_gpu(self) -> None:
        nic = address(9)
        self.assertIsNone(takeover.judge(instance(nic), {"mine": has(nic)}, hardware(gpu(1))))
        self.assertIsNone(takeover.judge(instance(), {}, hardware(gpu(1))))

    def test_a_companion_is_the_card(self) -> None:
        """Nova's alias may give the functions of a card one by one."""
        holding = self.judge(instance(address(1), address(1, 1)), hardware(gpu(1)))
        self.assertEqual(("0000:01:00.0",), holding.devices)
        self.assertEqual("= 1", holding.set["gpus"])
        self.assertEqual([], list(holding.obstacles))

    def test_a_companion_that_nova_has_not_recorded(self) -> None:
        domain = has(address(1), address(1, 1))
        holding = self.judge(instance(address(1)), hardware(gpu(1)), domain=domain)
        self.assertEqual([], list(holding.obstacles))

    def test_what_it_is_busy_with(self) -> None:
        for changes, *parts in (
            ({"task_state": "deleting"}, "deleting", "wait"),
            ({"migration": "pre-migrating"}, "migration", "pre-migrating", "wait"),
            ({"vm_state": "error"}, "state is error"),
            ({"vm_state": "suspended"}, "state is suspended"),
        ):
            with self.subTest(changes):
                own = instance(address(1), **changes)  # type: ignore[arg-type]
                self.assertObstacle(self.judge(own, hardware(gpu(1))), *parts)

    def test_records_that_differ(self) -> None:
        host = hardware(gpu(1))
        missing = self.judge(instance(address(1)), host, domain=Domain())
        self.assertObstacle(missing, "counts 0000:01:00.0", "no such device")
        attached = self.judge(instance(), host, domain=has(address(1)))
        self.assertObstacle(attached, "does not count", "0000:01:00.0", "detach")

    def test_a_function_that_is_a_strangers(self) -> None:
        others = {OTHER: has(address(1, 1))}
        holding = self.judge(instance(address(1)), hardware(gpu(1)), others=others)
        self.assertObstacle(holding, "0000:01:00.1", OTHER)

    def test_a_card_that_no_guest_can_have(self) -> None:
        for_all = Unavailable("its group is shared", "use a slot", Source.HOST, Scope.ALL)
        host = hardware(gpu(1), reasons={address(1): (for_all,)})
        holding = self.judge(instance(address(1)), host)
        self.assertObstacle(holding, "its group is shared", "use a slot")
        for_new = dataclasses.replace(for_all, scope=Scope.NEW)
        host = hardware(gpu(1), reasons={address(1): (for_new,)})
        self.assertEqual([], list(self.judge(instance(address(1)), host).obstacles))

    def test_a_card_that_would_be_offered_in_parts(self) -> None:
        host = hardware(gpu(1), divided=frozenset([address(1)]))
        holding = self.judge(instance(address(1)), host)
        self.assertObstacle(holding, "0000:01:00.0 in parts", "[gpu]vgpu_types")

    def test_cards_of_several_products(self) -> None:
        host = hardware(gpu(1), gpu(2, L4))
        holding = self.judge(instance(address(1), address(2)), host)
        self.assertObstacle(holding, "10de:25b6", "10de:27b8", "resize")

    def test_a_companion_alone(self) -> None:
        holding = self.judge(instance(address(1, 1)), hardware(gpu(1)))
        self.assertObstacle(holding, "0000:01:00.1 without 0000:01:00.0")

    def test_a_virtual_function(self) -> None:
        function = PciAddress(0, 1, 0, 4)
        host = hardware(gpu(1))
        functions = {**host.cards_by_function, function: address(1)}
        host = dataclasses.replace(host, cards_by_function=functions)
        self.assertObstacle(self.judge(instance(function), host), "virtual function", "vgpus")

    def test_what_is_left_to_finish(self) -> None:
        own = instance(counted=frozenset([address(1)]), unfinished=True)
        holding = self.judge(own, hardware(gpu(1)), domain=has(address(1)))
        self.assertEqual(((address(1),), frozenset()), (holding.cards, holding.functions))
        self.assertEqual(("= 1", []), (holding.set["gpus"], list(holding.obstacles)))

    def test_records_that_are_gone_in_part(self) -> None:
        """All of its cards stay its own, though Nova's record of one is left."""
        counted = frozenset([address(1), address(2)])
        own = instance(recorded={address(2): None}, counted=counted, unfinished=True)
        holding = self.judge(own, hardware(gpu(1), gpu(2)), domain=has(*counted))
        self.assertEqual(("= 2", []), (holding.set["gpus"], list(holding.obstacles)))
        self.assertEqual(frozenset([address(2)]), holding.functions)
        holding = self.judge(own, hardware(gpu(2)), domain=has(*counted))
        self.assertObstacle(holding, "0000:01:00.0", "does not have")

    def test_gpus_by_nova_gpu_as_well(self) -> None:
        for changes in ({"counted": frozenset([address(2)])}, {"parts": True}):
            own = instance(address(1), **changes)  # type: ignore[arg-type]
            self.assertObstacle(self.judge(own, hardware(gpu(1), gpu(2))), "by nova-gpu as well")

    def test_devices_of_another_kind(self) -> None:
        nic = address(9)
        own = instance(recorded={address(1): "a2", nic: "nic"})
        holding = self.judge(own, hardware(gpu(1)))
        self.assertEqual((frozenset([address(1)]), ()), (holding.functions, holding.obstacles))
        holding = self.judge(instance(address(1), nic), hardware(gpu(1)))
        self.assertObstacle(holding, "the alias a2", "0000:09:00.0")

    def test_an_instance_on_another_host(self) -> None:
        own = instance(address(1), elsewhere="host2")
        self.assertObstacle(self.judge(own, hardware(gpu(1))), "on the host host2", "evacuation")

    def test_mediated_devices(self) -> None:
        made = MediatedDevice(address(1), address(1), "nvidia-35")
        host = hardware(gpu(1), mediated={MDEV: made})
        own = instance(extra_specs={"resources:VGPU": "1", "hw:x": "y"})
        holding = self.judge(own, host, domain=has(mediated=MDEV))
        self.assertEqual((Way.MEDIATED,), holding.ways)
        self.assertEqual(("0000:01:00.0/nvidia-35",), holding.devices)
        self.assertEqual({"vgpus": "= 1", "vgpu_type": "s== nvidia-35"}, holding.set)
        self.assertEqual(("resources:VGPU",), holding.unset)
        self.assertObstacle(holding, "mediated device", "nvidia-35", "resize")

    def test_what_the_flavor_has_besides(self) -> None:
        alias = {"pci_passthrough:alias": "nic:2, a2:1", "hw:x": "y"}
        holding = self.judge(instance(address(1), extra_specs=alias), hardware(gpu(1)))
        self.assertEqual("nic:2", holding.set["pci_passthrough:alias"])
        self.assertEqual((), holding.unset)
        self.assertEqual(frozenset(["a2"]), holding.aliases)

    def test_an_older_record(self) -> None:
        holding = self.judge(instance(recorded={address(1): None}), hardware(gpu(1)))
        self.assertObstacle(holding, "does not say by which alias", "resize")

    def test_what_nova_gpu_has_given(self) -> None:
        own = instance(counted=frozenset([address(1)]))
        self.assertIsNone(takeover.judge(own, {"mine": has(address(1))}, hardware(gpu(1))))

    def test_what_was_taken_over_in_part(self) -> None:
        """Its record of stock Nova is left, and a takeover goes on from there."""
        own = instance(recorded={address(1): None}, counted=frozenset([address(1)]))
        holding = self.judge(own, hardware(gpu(1)))
        self.assertEqual((address(1),), holding.cards)
        self.assertEqual([], list(holding.obstacles))

    def test_a_mediated_device_that_is_gone(self) -> None:
        own = instance(address(1))
        holding = self.judge(own, hardware(gpu(1)), domain=has(address(1), mediated=MDEV))
        self.assertObstacle(holding, MDEV, "does not have")


class ChoiceTest(unittest.TestCase):
    HOST = hardware(gpu(1), gpu(2), gpu(3, node=1), gpu(4, node=1))

    def choice(self, *buses: int, others: Mapping[str, Domain] | None = None) -> Any:
        own = instance(*map(address, buses))
        domains = {"mine": has(*own.recorded), **(others or {})}
        holding = takeover.judge(own, domains, self.HOST)
        assert holding
        return holding.choice

    def test_cards_of_two_nodes(self) -> None:
        choice = self.choice(1, 3)
        self.assertEqual((address(1), address(2)), choice.cards)
        self.assertEqual(("SYS", "NODE"), choice.paths)

    def test_cards_as_near_as_they_can_be(self) -> None:
        self.assertIsNone(self.choice(1))
        self.assertIsNone(self.choice(3, 4))
        self.assertIsNone(self.choice(1, 2, 3))

    def test_cards_of_others_are_not_chosen(self) -> None:
        others = {OTHER: has(address(2)), "one-more": has(address(4, 1))}
        self.assertIsNone(self.choice(1, 3, others=others))


class WordsTest(unittest.TestCase):
    def test_the_request_that_they_are(self) -> None:
        """nova-gpu reads from the words how many cards of which model are asked for."""
        awkward = Product("10de", "0001", "Quadro RTX 6000/8000 (Turing)", "turing")
        for product in (A2, L4, awkward, NAMELESS):
            with self.subTest(product.key):
                words = takeover.words([product, product], ())
                parsed = request.of(words)
                self.assertEqual([2], [each.count for each in parsed.requests])
                self.assertEqual(product.name is not None, "gpu:model" in words)
                for demand in parsed.requests[0].demands:
                    self.assertTrue(demand.condition.matches(product.name), words)
