# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import pathlib
import unittest
from collections.abc import Mapping
from typing import Any

from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.virt.usage.allocations import Allocations
from nova_gpu.virt.usage.domains import DomainDevices
from nova_gpu.virt.usage.records import Records
from nova_gpu.virt.verify import contradictions
from nova_gpu.virt.verify.sources import (
    Conflict,
    Consumer,
    Difference,
    GroupProvider,
    HostState,
    Wanted,
)
from tests.fixtures import cards

A, B, C, D = cards.addresses("0000:04:00.0", "0000:05:00.0", "0000:08:00.0", "0000:09:00.0")
ALL = frozenset({A, B, C, D})
S, T, U = (Slot.parse(f"0000:3b:00.0/nvidia-63/{number}") for number in range(3))
GROUP, PARTS = "group", "vgpus"
NONE = frozenset[Any]()


@dataclasses.dataclass(frozen=True)
class Instance:
    counted: frozenset[tuple[str, Any]]
    wanted: Wanted
    settled: bool = True


def instance(*has: Any, count: int | None = None, settled: bool = True, **wanted: Any) -> Instance:
    counted = frozenset((GROUP, card) for card in has)
    wanted = {"active": True, "count": len(has) if count is None else count, **wanted}
    return Instance(counted, Wanted(**wanted), settled)


def guest(*has: Any, running: bool = True) -> DomainDevices:
    return DomainDevices(frozenset(has), run="1" if running else None)


@dataclasses.dataclass(frozen=True)
class Group:
    """A provider, and how many of its devices each consumer has"""

    provider: GroupProvider
    allocated: Mapping[str, int]


def group(allocated: Mapping[str, int], **fields: Any) -> Group:
    fields = {"name": "h_gpu", "total": 4, "reserved": 0, "fit": ALL, **fields}
    return Group(GroupProvider(**fields), allocated)


# Two instances, one of them stopped, and two cards that are free.
AGREED: dict[str, Any] = {
    "cards": ALL,
    "unfit": {},
    "guests": {"one": guest(A), "two": guest(B, running=False), "plain": guest()},
    "instances": {"one": instance(A), "two": instance(B, active=False), "plain": instance()},
    "returning": NONE,
    "groups": {GROUP: group({"one": 1, "two": 1})},
    "holders": {},
}


def compare(**fields: Any) -> tuple[Difference, ...]:
    """What is found in AGREED with these changes"""
    fields = AGREED | fields
    instances: Mapping[str, Instance] | None = fields.pop("instances")
    groups: Mapping[str, Group] | None = fields.pop("groups")
    returning = fields.pop("returning")
    read = None
    if instances is not None:
        counted = {
            uuid: frozenset((uuid_, str(dev)) for uuid_, dev in item.counted)
            for uuid, item in instances.items()
        }
        settled = frozenset(uuid for uuid, item in instances.items() if item.settled)
        read = Records(counted, returning=returning, settled=settled, idle=settled)
    by_provider = {
        uuid: {who: {item.provider.resource_class: n} for who, n in item.allocated.items()}
        for uuid, item in (groups or {}).items()
    }
    state = HostState(
        records=read,
        wanted={uuid: item.wanted for uuid, item in (instances or {}).items()},
        providers=groups and {uuid: item.provider for uuid, item in groups.items()},
        allocations=Allocations(by_provider=by_provider),
        **fields,
    )
    return contradictions.compare(state)


class CompareTest(unittest.TestCase):
    def assertFound(
        self, *expected: tuple[Conflict, str, bool], **changes: Any
    ) -> tuple[Difference, ...]:
        differences = compare(**changes)
        self.assertEqual(
            sorted(expected),
            sorted(
                (difference.kind, difference.subject, difference.safe) for difference in differences
            ),
        )
        for difference in differences:
            self.assertIn(difference.subject, difference.text)
            self.assertTrue(difference.remedy)
        return differences

    def instances(self, **changed: Instance) -> dict[str, Instance]:
        return {**AGREED["instances"], **changed}

    def guests(self, **changed: DomainDevices) -> dict[str, DomainDevices]:
        return {**AGREED["guests"], **changed}

    def test_domains(self) -> None:
        check, guests, instances = self.assertFound, self.guests, self.instances
        check()
        reaches, shared = (
            (Conflict.REACHES_OTHERS, "plain", False),
            (Conflict.SHARED_BY_DOMAINS, str(A)),
        )
        reached = DomainDevices(reached=frozenset({A}), run="1")
        (difference,) = check(reaches, guests=guests(plain=reached))
        self.assertIn("which the instances one have", difference.text)
        opened = dataclasses.replace(reached, opened=frozenset({A}))
        check(reaches, (*shared, False), guests=guests(plain=opened))
        plain_differs = Conflict.DOMAIN_DIFFERS, "plain", False
        check((*shared, False), plain_differs, guests=guests(plain=guest(A)))
        both = instances(two=instance(A, active=False))
        check((Conflict.SHARED_BY_INSTANCES, str(A), False), instances=both)
        foreign, exceeds = Conflict.FOREIGN_DOMAIN, (Conflict.INVENTORY_EXCEEDS, "h_gpu", False)
        others = {"guests": guests(other=guest(C))}
        reserved = {"groups": {GROUP: group({"one": 1, "two": 1}, reserved=1)}}
        check((foreign, "other", False), exceeds, **others)
        check((foreign, "other", False), **others, **reserved)
        check(**others, **reserved, returning=frozenset({"other"}))
        gone, unlike = (Conflict.NO_DOMAIN, "one", False), (Conflict.DOMAIN_DIFFERS, "one", False)
        for stopped in (guest(A, running=False), guest(running=False)):
            check(gone, guests=guests(one=stopped))
        check(gone, guests={"plain": guest(), "two": guest(B, running=False)})
        check(unlike, guests=guests(one=guest()))
        check(unlike, exceeds, guests=guests(one=guest(C)))
        # A card by an alias is counted elsewhere.
        aliased = instances(plain=instance(aliased=True))
        check(guests=guests(plain=guest(C)), instances=aliased, **reserved)
        check(plain_differs, guests=guests(plain=guest(C)), **reserved)

    def test_allocations(self) -> None:
        check = self.assertFound
        fewer, short = self.instances(one=instance(A, count=2)), (Conflict.FLAVOR_DIFFERS, "one")
        check((*short, False), instances=fewer)
        differs = Conflict.ALLOCATION_DIFFERS, "one"
        check((*differs, True), groups={GROUP: group({"two": 1}, reserved=1)})
        more = {GROUP: group({"one": 2, "two": 1})}
        check((*differs, True), groups=more)
        check((*differs, False), (*short, False), groups=more, instances=fewer)
        there = dataclasses.replace(instance(A), counted=frozenset({("other", A)}))
        elsewhere = (Conflict.ALLOCATION_ELSEWHERE, "one", False)
        check(elsewhere, (*differs, True), instances=self.instances(one=there))
        left = {GROUP: group({"one": 1, "two": 1, "who": 1})}
        for holder, kind, safe in (
            (Consumer.DELETED, Conflict.ALLOCATION_LEFT, True),
            (Consumer.ENDED_MOVE, Conflict.ALLOCATION_LEFT, True),
            (Consumer.ELSEWHERE, Conflict.ALLOCATION_UNKNOWN, False),
            (Consumer.UNKNOWN, Conflict.ALLOCATION_UNKNOWN, False),
        ):
            check((kind, "who", safe), groups=left, holders={"who": holder})
        check(groups=left, holders={"who": Consumer.ON_ITS_WAY})
        # A guest that outlived its instance keeps the allocation.
        expected = (Conflict.ALLOCATION_LEFT, "who", False), (Conflict.FOREIGN_DOMAIN, "who", False)
        holders, guests = {"who": Consumer.DELETED}, self.guests(who=guest(C))
        check(*expected, groups=left, holders=holders, guests=guests)
        # What is on its way is not compared.
        moving = self.instances(one=instance(A, settled=False))
        guests = {"two": guest(B, running=False)}
        check(guests=guests, instances=moving, groups={GROUP: group({"two": 1}, total=5)})

    def test_cards(self) -> None:
        fit = {GROUP: group({"one": 1, "two": 1}, fit=ALL - {A})}
        self.assertFound((Conflict.CARD_MISSING, str(A), False), cards=ALL - {A}, groups=fit)
        unfit = {A: "it is with nouveau", C: "x"}
        self.assertFound((Conflict.CARD_UNFIT, str(A), False), unfit=unfit)

    def test_who_does_not_answer_contradicts_nobody(self) -> None:
        foreign, gone = (Conflict.FOREIGN_DOMAIN, "x", False), (Conflict.NO_DOMAIN, "one", False)
        miscounted = (Conflict.ALLOCATION_DIFFERS, "one", True)
        for name, expected in (
            ("cards", [foreign, gone, miscounted]),
            ("guests", [miscounted]),
            ("instances", []),
            ("groups", [foreign, gone]),
        ):
            changes: dict[str, Any] = {"guests": {"x": guest(C)}}
            changes["groups"] = {GROUP: group({"two": 1, "who": 1}, total=9)}
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
            its = instance(A, near=near, settled=settled)
            differences = compare(
                guests={**AGREED["guests"], "one": one},
                instances={**AGREED["instances"], "one": its},
                nodes=node,
            )
            conflicts = [(difference.kind, difference.subject) for difference in differences]
            with self.subTest(cells=cells, node=node, near=near, settled=settled):
                self.assertEqual([(Conflict.CARD_REMOTE, str(A))] * is_remote, conflicts)


VGPUS = {"name": "h_vgpu", "total": 0, "fit": NONE, "resource_class": "VGPU"}


class VGPUsTest(unittest.TestCase):
    """An instance with two of them, and a domain of another"""

    def found(self, **changes: Any) -> list[tuple[Conflict, str]]:
        truths = {
            "cards": NONE,
            "guests": {"one": guest(S, T)},
            "instances": {"one": instance(S, T)},
            "groups": {GROUP: group({"one": 2}, **VGPUS)},
            "functions": frozenset({S.parent}),
            "made": {"one": frozenset({S, T})},
        }
        return [
            (difference.kind, difference.subject) for difference in compare(**(truths | changes))
        ]

    def test_each(self) -> None:
        self.assertEqual([], self.found())
        self.assertEqual(
            [(Conflict.VGPU_MISSING, str(T))], self.found(made={"one": frozenset({S})})
        )
        moving = {"one": instance(S, T, settled=False)}
        self.assertEqual([], self.found(made={}, instances=moving))
        left = {"one": frozenset({S, T}), "gone": frozenset({U})}
        self.assertEqual([(Conflict.VGPU_LEFT, str(U))], self.found(made=left))
        self.assertEqual([], self.found(made=left, returning=frozenset({"gone"})))
        for unknown in ("made", "guests", "instances"):
            self.assertNotIn(Conflict.VGPU_LEFT, dict(self.found(**{"made": left, unknown: None})))
        missing = [(Conflict.CARD_MISSING, str(S)), (Conflict.CARD_MISSING, str(T))]
        self.assertEqual(missing, self.found(functions=frozenset()))
        others = self.found(guests={"one": guest(S, T, U), "two": guest(U)})
        shared, vgpu = (Conflict.SHARED_BY_DOMAINS, str(U)), (Conflict.VGPU_MISSING, str(U))
        unlike = (Conflict.FOREIGN_DOMAIN, "two"), (Conflict.DOMAIN_DIFFERS, "one")
        self.assertEqual([shared, *unlike, vgpu], others)
        differs = [(Conflict.ALLOCATION_DIFFERS, "one")]
        self.assertEqual(differs, self.found(groups={GROUP: group({"one": 1}, **VGPUS)}))


class InventoriesTest(unittest.TestCase):
    """An instance with one of four cards, and one of eight vGPUs, of which two are reserved"""

    def setUp(self) -> None:
        self.counted = frozenset({(GROUP, A), (PARTS, S)})
        self.vgpus = group({"one": 1}, **(VGPUS | {"total": 8, "reserved": 2}))

    def found(self, **changes: Any) -> list[tuple[Conflict, str]]:
        agreed = {
            "guests": {"one": guest(A)},
            "instances": {"one": Instance(self.counted, Wanted(active=True, count=2))},
            "groups": {GROUP: group({"one": 1}), PARTS: self.vgpus},
            "vgpus_free": {"h_vgpu": 5},
        }
        kinds = (Conflict.INVENTORY_SHORT, Conflict.INVENTORY_EXCEEDS)
        differences = compare(**(agreed | changes))
        return [
            (difference.kind, difference.subject)
            for difference in differences
            if difference.kind in kinds
        ]

    def of_group(self, allocated: int = 1, **fields: Any) -> list[tuple[Conflict, str]]:
        return self.found(groups={GROUP: group({"one": 1} if allocated else {}, **fields)})

    def test_totals(self) -> None:
        self.assertEqual([], self.found())
        self.assertEqual([(Conflict.INVENTORY_SHORT, "h_gpu")], self.of_group(total=3))
        exceeds = [(Conflict.INVENTORY_EXCEEDS, "h_gpu")]
        self.assertEqual(exceeds, self.of_group(fit=ALL - {C}))
        self.assertEqual([], self.of_group(fit=ALL - {C}, reserved=1))
        used = {"one": guest(A), "x": guest(B)}
        self.assertEqual(exceeds, self.found(guests=used, groups={GROUP: group({"one": 1})}))
        # What Placement should count in addition is a difference of its own.
        self.assertEqual([], self.of_group(allocated=0))

    def test_vgpus(self) -> None:
        """Seven are left, two of them reserved."""
        for free, kind in ((8, Conflict.INVENTORY_SHORT), (4, Conflict.INVENTORY_EXCEEDS)):
            self.assertEqual([(kind, "h_vgpu")], self.found(vgpus_free={"h_vgpu": free}))
        self.assertEqual([], self.found(vgpus_free={}), "nobody knows")

    def test_not_while_somebody_is_on_the_way(self) -> None:
        more = {GROUP: group({"one": 1}, fit=ALL - {C}), PARTS: self.vgpus}
        for changes in (
            {"instances": {"one": Instance(self.counted, Wanted(count=2), settled=False)}},
            {"holders": {"one": Consumer.ON_ITS_WAY}},
        ):
            differences = self.found(groups=more, vgpus_free={"h_vgpu": 4}, **changes)
            self.assertEqual([], differences, changes)


class DocumentationTest(unittest.TestCase):
    def test_every_kind_is_explained(self) -> None:
        root = pathlib.Path(__file__).parents[4]
        text = (root / "doc/source/admin/verify.rst").read_text()
        self.assertEqual([], [str(kind) for kind in Conflict if f"``{kind}``" not in text])
