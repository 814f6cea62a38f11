# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import unittest
from typing import Any

from nova_gpu.core import names
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.virt.verify import contradictions
from nova_gpu.virt.verify.sources import Guest, Holder, HostState, Instance, Kind, Provider
from tests.fixtures import cards

A, B, C = cards.addresses("0000:04:00.0", "0000:05:00.0", "0000:08:00.0")
ALL = frozenset({A, B, C})
WHOLE, PARTS = "group", "vgpus"


def instance(settled: bool = True) -> Instance:
    """One with a card and a vGPU"""
    counted = frozenset({(WHOLE, A), (PARTS, Slot(C, "nvidia-35", 0))})
    return Instance(active=True, settled=settled, flavor_count=2, counted=counted)


GROUP = Provider("h_gpu", 3, 0, {"one": 1}, ALL, ALL)
VGPUS = Provider("h_vgpu", 8, 2, {"one": 1}, frozenset(), frozenset(), names.VGPU_RESOURCE_CLASS)
AGREED = HostState(
    cards=ALL,
    unfit={},
    guests={"one": Guest(True, frozenset({A}))},
    instances={"one": instance()},
    returning=frozenset(),
    providers={WHOLE: GROUP, PARTS: VGPUS},
    holders={},
    vgpus_free={"h_vgpu": 5},
)


class InventoriesTest(unittest.TestCase):
    def found(self, **changes: Any) -> list[tuple[Kind, str]]:
        truths = dataclasses.replace(AGREED, **changes)
        kinds = (Kind.INVENTORY_SHORT, Kind.INVENTORY_EXCEEDS)
        found = contradictions.compare(truths)
        return [(each.kind, each.subject) for each in found if each.kind in kinds]

    def group(self, **fields: Any) -> list[tuple[Kind, str]]:
        return self.found(providers={WHOLE: dataclasses.replace(GROUP, **fields)})

    def test_they_agree(self) -> None:
        self.assertEqual([], self.found())

    def test_fewer_than_there_are(self) -> None:
        self.assertEqual([(Kind.INVENTORY_SHORT, "h_gpu")], self.group(total=2))

    def test_more_than_are_free(self) -> None:
        exceeds = [(Kind.INVENTORY_EXCEEDS, "h_gpu")]
        self.assertEqual(exceeds, self.group(fit=ALL - {C}))
        self.assertEqual([], self.group(fit=ALL - {C}, reserved=1))
        used = {"one": Guest(True, frozenset({A})), "x": Guest(True, frozenset({B}))}
        self.assertEqual(exceeds, self.found(guests=used, providers={WHOLE: GROUP}))

    def test_what_placement_should_count_besides_is_a_difference_of_its_own(self) -> None:
        self.assertEqual([], self.group(allocated={}))

    def test_vgpus(self) -> None:
        """Seven are left of eight, two of them reserved."""
        for free, kind in ((8, Kind.INVENTORY_SHORT), (4, Kind.INVENTORY_EXCEEDS)):
            self.assertEqual([(kind, "h_vgpu")], self.found(vgpus_free={"h_vgpu": free}))
        self.assertEqual([], self.found(vgpus_free={}), "nobody knows")

    def test_not_while_somebody_is_on_the_way(self) -> None:
        more = {WHOLE: dataclasses.replace(GROUP, fit=ALL - {C}), PARTS: VGPUS}
        for changes in (
            {"instances": {"one": instance(settled=False)}},
            {"holders": {"one": Holder.ON_ITS_WAY}},
        ):
            found = self.found(providers=more, vgpus_free={"h_vgpu": 4}, **changes)
            self.assertEqual([], found, changes)

    def test_what_is_not_known(self) -> None:
        self.assertEqual([], self.found(providers=None))
        short = {WHOLE: dataclasses.replace(GROUP, total=2)}
        self.assertEqual([], self.found(providers=short, cards=None))
        exceeds = {WHOLE: dataclasses.replace(GROUP, fit=ALL - {C})}
        self.assertEqual([], self.found(providers=exceeds, guests=None))
