# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import pathlib
import unittest
from collections.abc import Mapping
from typing import Any

from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.virt.verify import contradictions
from nova_gpu.virt.verify.sources import (
    Difference,
    Guest,
    Holder,
    HostState,
    Instance,
    Kind,
    Provider,
)
from tests.fixtures import cards

A, B, C, D = cards.addresses("0000:04:00.0", "0000:05:00.0", "0000:08:00.0", "0000:09:00.0")
ALL = frozenset({A, B, C, D})
S, T, U = (Slot.parse(f"0000:3b:00.0/nvidia-63/{number}") for number in range(3))
GROUP, PARTS = "group", "vgpus"
NONE = frozenset[Any]()


def instance(*has: Any, flavor_count: int | None = None, **fields: Any) -> Instance:
    counted = frozenset((GROUP, card) for card in has)
    fields = {"active": True, "settled": True, **fields}
    return Instance(
        flavor_count=len(has) if flavor_count is None else flavor_count, counted=counted, **fields
    )


def guest(*has: Any, running: bool = True) -> Guest:
    return Guest(running, frozenset(has))


def provider(allocated: Mapping[str, int], **fields: Any) -> Provider:
    own = {"name": "h_gpu", "total": 4, "reserved": 0, "fit": ALL, **fields}
    return Provider(allocated=allocated, **own)


# Two instances, one of them stopped, and two cards that are free.
AGREED = HostState(
    cards=ALL,
    unfit={},
    guests={"one": guest(A), "two": guest(B, running=False), "plain": guest()},
    instances={
        "one": instance(A),
        "two": instance(B, active=False),
        "plain": instance(),
    },
    returning=frozenset(),
    providers={GROUP: provider({"one": 1, "two": 1})},
    holders={},
)


class CompareTest(unittest.TestCase):
    def assertFound(
        self, *expected: tuple[Kind, str, bool], **changes: Any
    ) -> tuple[Difference, ...]:
        found = contradictions.compare(dataclasses.replace(AGREED, **changes))
        self.assertEqual(
            sorted(expected), sorted((each.kind, each.subject, each.safe) for each in found)
        )
        for each in found:
            self.assertIn(each.subject, each.text)
            self.assertTrue(each.remedy)
        return found

    def instances(self, **changed: Instance) -> dict[str, Instance]:
        return {**(AGREED.instances or {}), **changed}

    def guests(self, **changed: Guest) -> dict[str, Guest]:
        return {**(AGREED.guests or {}), **changed}

    def test_they_agree(self) -> None:
        self.assertFound()

    def test_a_card_that_a_guest_reaches_and_cannot_open(self) -> None:
        reaches = (Kind.REACHES_OTHERS, "plain", False)
        reached = Guest(True, frozenset({A}), frozenset({A}))
        (found,) = self.assertFound(reaches, guests=self.guests(plain=reached))
        self.assertIn("which the instances one have", found.text)
        opened = dataclasses.replace(reached, opened=frozenset({A}))
        shared = (Kind.SHARED_BY_DOMAINS, str(A), False)
        self.assertFound(reaches, shared, guests=self.guests(plain=opened))

    def test_a_card_in_two_domains(self) -> None:
        self.assertFound(
            (Kind.SHARED_BY_DOMAINS, str(A), False),
            (Kind.DOMAIN_DIFFERS, "plain", False),
            guests=self.guests(plain=guest(A)),
        )

    def test_a_card_of_two_instances(self) -> None:
        self.assertFound(
            (Kind.SHARED_BY_INSTANCES, str(A), False),
            instances=self.instances(two=instance(A, active=False)),
        )

    def test_a_domain_of_nobody(self) -> None:
        guests = self.guests(other=guest(C))
        self.assertFound(
            (Kind.FOREIGN_DOMAIN, "other", False),
            (Kind.INVENTORY_EXCEEDS, "h_gpu", False),
            guests=guests,
        )
        reserved = {GROUP: provider({"one": 1, "two": 1}, reserved=1)}
        self.assertFound((Kind.FOREIGN_DOMAIN, "other", False), guests=guests, providers=reserved)
        returning = frozenset({"other"})
        self.assertFound(guests=guests, providers=reserved, returning=returning)

    def test_an_active_instance_without_its_guest(self) -> None:
        for changed in ({"one": guest(A, running=False)}, {"one": guest(running=False)}):
            self.assertFound((Kind.NO_DOMAIN, "one", False), guests=self.guests(**changed))
        left = {"plain": guest(), "two": guest(B, running=False)}
        self.assertFound((Kind.NO_DOMAIN, "one", False), guests=left)

    def test_a_guest_without_its_card(self) -> None:
        self.assertFound((Kind.DOMAIN_DIFFERS, "one", False), guests=self.guests(one=guest()))

    def test_a_guest_with_another_card(self) -> None:
        self.assertFound(
            (Kind.DOMAIN_DIFFERS, "one", False),
            (Kind.INVENTORY_EXCEEDS, "h_gpu", False),
            guests=self.guests(one=guest(C)),
        )

    def test_a_card_by_an_alias_is_counted_elsewhere(self) -> None:
        providers = {GROUP: provider({"one": 1, "two": 1}, reserved=1)}
        for aliased, kinds in ((True, []), (False, [(Kind.DOMAIN_DIFFERS, "plain", False)])):
            self.assertFound(
                *kinds,
                guests=self.guests(plain=guest(C)),
                instances=self.instances(plain=instance(aliased=aliased)),
                providers=providers,
            )

    def test_fewer_than_the_flavor_asks_for(self) -> None:
        self.assertFound(
            (Kind.FLAVOR_DIFFERS, "one", False),
            instances=self.instances(one=instance(A, flavor_count=2)),
        )

    def test_a_card_that_is_gone(self) -> None:
        self.assertFound(
            (Kind.CARD_MISSING, str(A), False),
            cards=ALL - {A},
            providers={GROUP: provider({"one": 1, "two": 1}, fit=ALL - {A})},
        )

    def test_a_card_with_another_driver(self) -> None:
        self.assertFound((Kind.CARD_UNFIT, str(A), False), unfit={A: "it is with nouveau", C: "x"})

    def test_allocations_without_gpus(self) -> None:
        reserved = {GROUP: provider({"two": 1}, reserved=1)}
        self.assertFound((Kind.ALLOCATION_DIFFERS, "one", True), providers=reserved)

    def test_more_allocated_than_held(self) -> None:
        counted = {GROUP: provider({"one": 2, "two": 1})}
        self.assertFound((Kind.ALLOCATION_DIFFERS, "one", True), providers=counted)
        self.assertFound(
            (Kind.ALLOCATION_DIFFERS, "one", False),
            (Kind.FLAVOR_DIFFERS, "one", False),
            providers=counted,
            instances=self.instances(one=instance(A, flavor_count=2)),
        )

    def test_a_provider_of_another_host(self) -> None:
        elsewhere = dataclasses.replace(instance(A), counted=frozenset({("other", A)}))
        self.assertFound(
            (Kind.ALLOCATION_ELSEWHERE, "one", False),
            (Kind.ALLOCATION_DIFFERS, "one", True),
            instances=self.instances(one=elsewhere),
        )

    def test_allocations_of_others(self) -> None:
        providers = {GROUP: provider({"one": 1, "two": 1, "who": 1})}
        for holder, expected in (
            (Holder.DELETED, [(Kind.ALLOCATION_LEFT, "who", True)]),
            (Holder.ENDED_MOVE, [(Kind.ALLOCATION_LEFT, "who", True)]),
            (Holder.ELSEWHERE, [(Kind.ALLOCATION_UNKNOWN, "who", False)]),
            (Holder.UNKNOWN, [(Kind.ALLOCATION_UNKNOWN, "who", False)]),
            (Holder.ON_ITS_WAY, []),
        ):
            with self.subTest(holder):
                self.assertFound(*expected, providers=providers, holders={"who": holder})

    def test_a_guest_that_outlived_its_instance_keeps_the_allocation(self) -> None:
        self.assertFound(
            (Kind.ALLOCATION_LEFT, "who", False),
            (Kind.FOREIGN_DOMAIN, "who", False),
            providers={GROUP: provider({"one": 1, "two": 1, "who": 1})},
            holders={"who": Holder.DELETED},
            guests=self.guests(who=guest(C)),
        )

    def test_what_is_on_its_way_is_not_compared(self) -> None:
        moving = instance(A, settled=False)
        self.assertFound(
            guests={"two": guest(B, running=False)},
            instances=self.instances(one=moving),
            providers={GROUP: provider({"two": 1}, total=5)},
        )

    def test_who_does_not_answer_contradicts_nobody(self) -> None:
        foreign, gone = (Kind.FOREIGN_DOMAIN, "x", False), (Kind.NO_DOMAIN, "one", False)
        miscounted = (Kind.ALLOCATION_DIFFERS, "one", True)
        for name, expected in (
            ("cards", [foreign, gone, miscounted]),
            ("guests", [miscounted]),
            ("instances", []),
            ("providers", [foreign, gone]),
        ):
            changes: dict[str, Any] = {"guests": {"x": guest(C)}}
            changes["providers"] = {GROUP: provider({"two": 1, "who": 1}, total=9)}
            with self.subTest(name):
                self.assertFound(*expected, **{**changes, name: None})


class VGPUsTest(unittest.TestCase):
    """An instance with two of them, and a domain of another"""

    def found(self, **changes: Any) -> list[tuple[Kind, str]]:
        truths = dataclasses.replace(
            AGREED,
            cards=NONE,
            guests={"one": guest(S, T)},
            instances={"one": instance(S, T)},
            providers={GROUP: Provider("h_vgpu", 0, 0, {"one": 2}, NONE, "VGPU")},
            functions=frozenset({S.parent}),
            made={"one": frozenset({S, T})},
        )
        found = contradictions.compare(dataclasses.replace(truths, **changes))
        return [(each.kind, each.subject) for each in found]

    def test_they_agree(self) -> None:
        self.assertEqual([], self.found())

    def test_one_that_is_named_and_not_there(self) -> None:
        self.assertEqual([(Kind.VGPU_MISSING, str(T))], self.found(made={"one": frozenset({S})}))
        moving = {"one": instance(S, T, settled=False)}
        self.assertEqual([], self.found(made={}, instances=moving))

    def test_one_that_is_there_and_nobody_has(self) -> None:
        made = {"one": frozenset({S, T}), "gone": frozenset({U})}
        self.assertEqual([(Kind.VGPU_LEFT, str(U))], self.found(made=made))
        self.assertEqual([], self.found(made=made, returning=frozenset({"gone"})))
        for unknown in ("made", "guests", "instances"):
            self.assertNotIn(Kind.VGPU_LEFT, dict(self.found(**{"made": made, unknown: None})))

    def test_a_card_that_is_gone(self) -> None:
        found = self.found(functions=frozenset(), made={"one": frozenset({S, T})})
        self.assertEqual([(Kind.CARD_MISSING, str(S)), (Kind.CARD_MISSING, str(T))], found)

    def test_another_in_the_domain_and_one_in_two(self) -> None:
        found = self.found(guests={"one": guest(S, T, U), "two": guest(U)})
        self.assertEqual(
            [
                (Kind.SHARED_BY_DOMAINS, str(U)),
                (Kind.FOREIGN_DOMAIN, "two"),
                (Kind.DOMAIN_DIFFERS, "one"),
                (Kind.VGPU_MISSING, str(U)),
            ],
            found,
        )

    def test_allocations(self) -> None:
        provider = Provider("h_vgpu", 0, 0, {"one": 1}, NONE, "VGPU")
        self.assertEqual(
            [(Kind.ALLOCATION_DIFFERS, "one")], self.found(providers={GROUP: provider})
        )


class InventoriesTest(unittest.TestCase):
    """An instance with one of four cards, and one of eight vGPUs, of which two are reserved"""

    def setUp(self) -> None:
        self.instance = Instance(True, True, 2, frozenset({(GROUP, A), (PARTS, S)}))
        self.group = provider({"one": 1})
        self.vgpus = provider(
            {"one": 1}, name="h_vgpu", total=8, reserved=2, fit=NONE, resource_class="VGPU"
        )
        self.agreed = dataclasses.replace(
            AGREED,
            guests={"one": guest(A)},
            instances={"one": self.instance},
            providers={GROUP: self.group, PARTS: self.vgpus},
            vgpus_free={"h_vgpu": 5},
        )

    def found(self, **changes: Any) -> list[tuple[Kind, str]]:
        truths = dataclasses.replace(self.agreed, **changes)
        kinds = (Kind.INVENTORY_SHORT, Kind.INVENTORY_EXCEEDS)
        found = contradictions.compare(truths)
        return [(each.kind, each.subject) for each in found if each.kind in kinds]

    def of_group(self, **fields: Any) -> list[tuple[Kind, str]]:
        return self.found(providers={GROUP: dataclasses.replace(self.group, **fields)})

    def test_they_agree(self) -> None:
        self.assertEqual([], self.found())

    def test_fewer_than_there_are(self) -> None:
        self.assertEqual([(Kind.INVENTORY_SHORT, "h_gpu")], self.of_group(total=3))

    def test_more_than_are_free(self) -> None:
        exceeds = [(Kind.INVENTORY_EXCEEDS, "h_gpu")]
        self.assertEqual(exceeds, self.of_group(fit=ALL - {C}))
        self.assertEqual([], self.of_group(fit=ALL - {C}, reserved=1))
        used = {"one": guest(A), "x": guest(B)}
        self.assertEqual(exceeds, self.found(guests=used, providers={GROUP: self.group}))

    def test_what_placement_should_count_besides_is_a_difference_of_its_own(self) -> None:
        self.assertEqual([], self.of_group(allocated={}))

    def test_vgpus(self) -> None:
        """Seven are left, two of them reserved."""
        for free, kind in ((8, Kind.INVENTORY_SHORT), (4, Kind.INVENTORY_EXCEEDS)):
            self.assertEqual([(kind, "h_vgpu")], self.found(vgpus_free={"h_vgpu": free}))
        self.assertEqual([], self.found(vgpus_free={}), "nobody knows")

    def test_not_while_somebody_is_on_the_way(self) -> None:
        more = {GROUP: dataclasses.replace(self.group, fit=ALL - {C}), PARTS: self.vgpus}
        for changes in (
            {"instances": {"one": dataclasses.replace(self.instance, settled=False)}},
            {"holders": {"one": Holder.ON_ITS_WAY}},
        ):
            found = self.found(providers=more, vgpus_free={"h_vgpu": 4}, **changes)
            self.assertEqual([], found, changes)

    def test_what_is_not_known(self) -> None:
        self.assertEqual([], self.found(providers=None))
        short = {GROUP: dataclasses.replace(self.group, total=3)}
        self.assertEqual([], self.found(providers=short, cards=None))
        exceeds = {GROUP: dataclasses.replace(self.group, fit=ALL - {C})}
        self.assertEqual([], self.found(providers=exceeds, guests=None))


class DocumentationTest(unittest.TestCase):
    def test_every_kind_is_explained(self) -> None:
        root = pathlib.Path(__file__).parents[4]
        text = (root / "doc/source/admin/verify.rst").read_text()
        self.assertEqual([], [str(kind) for kind in Kind if f"``{kind}``" not in text])
