# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import unittest
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from nova_gpu.core import unavailability
from nova_gpu.core.model import GPU, DeliveryMode, GPUGroup, GroupKey, PciAddress, Product
from nova_gpu.core.unavailability import Reasons, Scope
from nova_gpu.virt.inventory import card_groups
from tests.fixtures import cards

A, B = "0000:04:00.0", "0000:05:00.0"
FERMI = Product("10de", "1091", "Tesla M2090", "fermi")
KEPLER = Product("10de", "1023", "Tesla K40m", "kepler")
FERMIS = GroupKey("10de", "1091", DeliveryMode.LXC)
KEPLERS = GroupKey("10de", "1023", DeliveryMode.LXC)
GONE = str(card_groups.GONE)


def look(
    gpus: Iterable[GPU],
    before: card_groups.CardGroups,
    *obstructed: str,
    unavailable: Mapping[PciAddress, Reasons] = MappingProxyType({}),
) -> card_groups.CardGroups:
    no_node = cards.reasons("no node", scope=Scope.ALL)
    reasons = unavailability.merge(
        unavailable, dict.fromkeys(cards.addresses(*obstructed), no_node)
    )
    return card_groups.offered(gpus, before, DeliveryMode.LXC, reasons)


def reserved(group: GPUGroup) -> dict[PciAddress, str]:
    """The cards that new instances alone are not given"""
    reasons = group.unavailable.items()
    return {a: str(own[0]) for a, own in reasons if unavailability.for_all(own) is None}


class NameTest(unittest.TestCase):
    """Boards of several names with one product id are one group."""

    A2 = GroupKey("10de", "25b6", DeliveryMode.LXC)

    def name(self, *names: str | None, known: str = "") -> str | None:
        gpus = [
            cards.placed(
                address,
                product=Product("10de", "25b6", name),
                uuid=f"GPU-{address}" if name == known else None,
            )
            for address, name in zip((A, B), names, strict=True)
        ]
        return look(gpus, {})[self.A2].product.name

    def test_each(self) -> None:
        self.assertEqual("A2", self.name("A2", "A2"))
        self.assertEqual("A16 / A2", self.name("A2", "A16"))
        self.assertEqual("A16 / A2", self.name("A16", "A2"))
        self.assertEqual("A2", self.name("A2", None))
        self.assertEqual("A2", self.name("A2 / A16", "A2", known="A2"), "the other one is dead")
        self.assertEqual("A2 / A2 / A16", self.name("A2 / A16", "A2"), "only one is told apart")
        self.assertEqual("A2 / A16", self.name("A2 / A16", "A2 / A16"))


class OfferTest(unittest.TestCase):
    def setUp(self) -> None:
        self.both = [cards.placed(A, product=FERMI), cards.placed(B, product=FERMI)]
        self.before = look(self.both, {})

    def assertOffer(
        self, expected: dict[GroupKey, dict[str, str | None]], groups: card_groups.CardGroups
    ) -> None:
        """Why not even its own instance is given a card, ``None`` where it is"""
        self.assertEqual(
            expected,
            {
                key: {
                    str(a): reason and str(reason)
                    for a in group.gpus
                    for reason in [unavailability.for_all(group.unavailable.get(a, ()))]
                }
                for key, group in groups.items()
            },
        )

    def test_what_comes_and_goes(self) -> None:
        kepler = cards.placed(B, product=KEPLER)
        groups = look([self.both[0], kepler], {})
        self.assertOffer({FERMIS: {A: None}, KEPLERS: {B: None}}, groups)
        self.assertEqual(FERMI, groups[FERMIS].product)
        # Never offered and obstructed it is left out; once offered it stays, and is ill.
        self.assertOffer({FERMIS: {A: None}}, look(self.both, {}, B))
        self.assertOffer({}, look(self.both, {}, A, B))
        self.assertOffer({FERMIS: {A: None, B: "no node"}}, look(self.both, self.before, B))
        groups = self.before
        for _ in range(2):  # in the next period as well
            groups = look(self.both[:1], groups)
            self.assertOffer({FERMIS: {A: None, B: GONE}}, groups)
        gone = look([], self.before)
        self.assertOffer({FERMIS: {A: GONE, B: GONE}}, gone)
        self.assertOffer({FERMIS: {A: None, B: None}}, look(self.both, gone))
        groups = look([self.both[0], kepler], self.before)
        replaced = {A: None, B: str(card_groups.REPLACED)}
        self.assertOffer({FERMIS: replaced, KEPLERS: {B: None}}, groups)
        moved = cards.placed(A, 1, product=FERMI)
        groups = look([moved, self.both[1]], self.before)
        self.assertEqual(1, groups[FERMIS].gpus[moved.address].numa_node)

    def test_what_ails(self) -> None:
        """From the start it is offered, unless it has an obstacle too."""
        first, second = cards.addresses(A, B)
        unavailable = cards.unavailable({first: "silent"}, {second: "Xid 48"})
        groups = look(self.both, {}, unavailable=unavailable)
        self.assertOffer({FERMIS: {A: "silent", B: None}}, groups)
        self.assertEqual({second: "Xid 48"}, reserved(groups[FERMIS]))
        self.assertEqual(unavailable, groups[FERMIS].unavailable)
        self.assertEqual({}, look(self.both, groups)[FERMIS].unavailable)
        xid = cards.unavailable({}, {first: "Xid 48"})
        self.assertOffer({FERMIS: {B: None}}, look(self.both, {}, A, unavailable=xid))
        stranger = cards.addresses("0000:99:00.0")[0]
        before = look(self.both, {}, unavailable=xid)
        more = cards.unavailable({}, {second: "not clean", stranger: "elsewhere"})
        groups = card_groups.reserving(before, more)
        self.assertEqual({first: "Xid 48", second: "not clean"}, reserved(groups[FERMIS]))

    def test_including_what_is_not_found(self) -> None:
        first, second = cards.addresses(A, B)
        known = look(self.both[:1], {})
        self.assertEqual(known, card_groups.including(known, FERMIS, first))
        group = card_groups.including(known, FERMIS, second)[FERMIS]
        self.assertEqual({second: (card_groups.NOT_FOUND,)}, group.unavailable)
        self.assertEqual({first, second}, set(group.gpus))
        self.assertEqual(FERMI, group.gpus[second].product)
        group = card_groups.including({}, KEPLERS, second)[KEPLERS]
        self.assertEqual({second: (card_groups.NOT_FOUND,)}, group.unavailable)
        self.assertIsNone(group.product.architecture)


class MemoryTest(unittest.TestCase):
    def test_a_group_is_what_each_of_its_cards_is_at_least(self) -> None:
        for sizes, expected in (
            ((81920, 81920), 81920),
            ((81920, 40960), 40960),
            ((40960, 81920), 40960),
            ((81920, None), 81920),
            ((None, 81920), 81920),
            ((None, None), None),
        ):
            gpus = [
                cards.placed(address, product=dataclasses.replace(FERMI, memory_mib=size))
                for address, size in zip((A, B), sizes, strict=True)
            ]
            with self.subTest(sizes=sizes):
                group = look(gpus, {})[FERMIS]
                self.assertEqual(expected, group.product.memory_mib)
                # Nobody gets one that may have less.
                unknown = {gpu.address for gpu in gpus if gpu.product.memory_mib is None}
                self.assertEqual(unknown if expected else set(), set(reserved(group)))
