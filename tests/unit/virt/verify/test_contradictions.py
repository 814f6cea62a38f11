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

    def test_domains(self) -> None:
        found, guests, instances = self.assertFound, self.guests, self.instances
        found()
        reaches, shared = (Kind.REACHES_OTHERS, "plain", False), (Kind.SHARED_BY_DOMAINS, str(A))
        reached = Guest(True, frozenset({A}), frozenset({A}))
        (difference,) = found(reaches, guests=guests(plain=reached))
        self.assertIn("which the instances one have", difference.text)
        opened = dataclasses.replace(reached, opened=frozenset({A}))
        found(reaches, (*shared, False), guests=guests(plain=opened))
        plain_differs = Kind.DOMAIN_DIFFERS, "plain", False
        found((*shared, False), plain_differs, guests=guests(plain=guest(A)))
        both = instances(two=instance(A, active=False))
        found((Kind.SHARED_BY_INSTANCES, str(A), False), instances=both)
        foreign, exceeds = Kind.FOREIGN_DOMAIN, (Kind.INVENTORY_EXCEEDS, "h_gpu", False)
        others = {"guests": guests(other=guest(C))}
        reserved = {"providers": {GROUP: provider({"one": 1, "two": 1}, reserved=1)}}
        found((foreign, "other", False), exceeds, **others)
        found((foreign, "other", False), **others, **reserved)
        found(**others, **reserved, returning=frozenset({"other"}))
        gone, unlike = (Kind.NO_DOMAIN, "one", False), (Kind.DOMAIN_DIFFERS, "one", False)
        for stopped in (guest(A, running=False), guest(running=False)):
            found(gone, guests=guests(one=stopped))
        found(gone, guests={"plain": guest(), "two": guest(B, running=False)})
        found(unlike, guests=guests(one=guest()))
        found(unlike, exceeds, guests=guests(one=guest(C)))
        # A card by an alias is counted elsewhere.
        aliased = instances(plain=instance(aliased=True))
        found(guests=guests(plain=guest(C)), instances=aliased, **reserved)
        found(plain_differs, guests=guests(plain=guest(C)), **reserved)

    def test_allocations(self) -> None:
        found = self.assertFound
        fewer, short = self.instances(one=instance(A, flavor_count=2)), (Kind.FLAVOR_DIFFERS, "one")
        found((*short, False), instances=fewer)
        differs = Kind.ALLOCATION_DIFFERS, "one"
        found((*differs, True), providers={GROUP: provider({"two": 1}, reserved=1)})
        more = {GROUP: provider({"one": 2, "two": 1})}
        found((*differs, True), providers=more)
        found((*differs, False), (*short, False), providers=more, instances=fewer)
        there = dataclasses.replace(instance(A), counted=frozenset({("other", A)}))
        elsewhere = (Kind.ALLOCATION_ELSEWHERE, "one", False)
        found(elsewhere, (*differs, True), instances=self.instances(one=there))
        left = {GROUP: provider({"one": 1, "two": 1, "who": 1})}
        for holder, kind, safe in (
            (Holder.DELETED, Kind.ALLOCATION_LEFT, True),
            (Holder.ENDED_MOVE, Kind.ALLOCATION_LEFT, True),
            (Holder.ELSEWHERE, Kind.ALLOCATION_UNKNOWN, False),
            (Holder.UNKNOWN, Kind.ALLOCATION_UNKNOWN, False),
        ):
            found((kind, "who", safe), providers=left, holders={"who": holder})
        found(providers=left, holders={"who": Holder.ON_ITS_WAY})
        # A guest that outlived its instance keeps the allocation.
        kept = (Kind.ALLOCATION_LEFT, "who", False), (Kind.FOREIGN_DOMAIN, "who", False)
        holders, guests = {"who": Holder.DELETED}, self.guests(who=guest(C))
        found(*kept, providers=left, holders=holders, guests=guests)
        # What is on its way is not compared.
        moving = self.instances(one=instance(A, settled=False))
        guests = {"two": guest(B, running=False)}
        found(guests=guests, instances=moving, providers={GROUP: provider({"two": 1}, total=5)})

    def test_cards(self) -> None:
        fit = {GROUP: provider({"one": 1, "two": 1}, fit=ALL - {A})}
        self.assertFound((Kind.CARD_MISSING, str(A), False), cards=ALL - {A}, providers=fit)
        unfit = {A: "it is with nouveau", C: "x"}
        self.assertFound((Kind.CARD_UNFIT, str(A), False), unfit=unfit)

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


class RemoteTest(unittest.TestCase):
    """The cells of a running guest, and the node of its card"""

    def test_each(self) -> None:
        for cells, node, near, settled, is_remote in (
            ({0}, {A: 1}, True, True, True),
            ({0, 1}, {A: 1}, True, True, False),
            ({0}, {}, True, True, False),  # the card's node is not known
            (set(), {A: 1}, True, True, False),
            ({0}, {A: 1}, False, True, False),  # preferred
            ({0}, {A: 1}, True, False, False),
        ):
            one = dataclasses.replace(guest(A), cells=frozenset(cells))
            state = dataclasses.replace(
                AGREED,
                guests={**(AGREED.guests or {}), "one": one},
                instances={
                    **(AGREED.instances or {}),
                    "one": instance(A, near=near, settled=settled),
                },
                nodes=node,
            )
            found = [(each.kind, each.subject) for each in contradictions.compare(state)]
            with self.subTest(cells=cells, node=node, near=near, settled=settled):
                self.assertEqual([(Kind.CARD_REMOTE, str(A))] * is_remote, found)


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

    def test_each(self) -> None:
        self.assertEqual([], self.found())
        self.assertEqual([(Kind.VGPU_MISSING, str(T))], self.found(made={"one": frozenset({S})}))
        moving = {"one": instance(S, T, settled=False)}
        self.assertEqual([], self.found(made={}, instances=moving))
        left = {"one": frozenset({S, T}), "gone": frozenset({U})}
        self.assertEqual([(Kind.VGPU_LEFT, str(U))], self.found(made=left))
        self.assertEqual([], self.found(made=left, returning=frozenset({"gone"})))
        for unknown in ("made", "guests", "instances"):
            self.assertNotIn(Kind.VGPU_LEFT, dict(self.found(**{"made": left, unknown: None})))
        missing = [(Kind.CARD_MISSING, str(S)), (Kind.CARD_MISSING, str(T))]
        self.assertEqual(missing, self.found(functions=frozenset()))
        others = self.found(guests={"one": guest(S, T, U), "two": guest(U)})
        shared, vgpu = (Kind.SHARED_BY_DOMAINS, str(U)), (Kind.VGPU_MISSING, str(U))
        unlike = (Kind.FOREIGN_DOMAIN, "two"), (Kind.DOMAIN_DIFFERS, "one")
        self.assertEqual([shared, *unlike, vgpu], others)
        fewer = Provider("h_vgpu", 0, 0, {"one": 1}, NONE, "VGPU")
        differs = [(Kind.ALLOCATION_DIFFERS, "one")]
        self.assertEqual(differs, self.found(providers={GROUP: fewer}))


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

    def test_totals(self) -> None:
        self.assertEqual([], self.found())
        self.assertEqual([(Kind.INVENTORY_SHORT, "h_gpu")], self.of_group(total=3))
        exceeds = [(Kind.INVENTORY_EXCEEDS, "h_gpu")]
        self.assertEqual(exceeds, self.of_group(fit=ALL - {C}))
        self.assertEqual([], self.of_group(fit=ALL - {C}, reserved=1))
        used = {"one": guest(A), "x": guest(B)}
        self.assertEqual(exceeds, self.found(guests=used, providers={GROUP: self.group}))
        # What Placement should count in addition is a difference of its own.
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


class DocumentationTest(unittest.TestCase):
    def test_every_kind_is_explained(self) -> None:
        root = pathlib.Path(__file__).parents[4]
        text = (root / "doc/source/admin/verify.rst").read_text()
        self.assertEqual([], [str(kind) for kind in Kind if f"``{kind}``" not in text])
