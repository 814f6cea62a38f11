# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import fixtures
from nova import exception as nova_exception
from nova import objects
from oslotest import base

from nova_gpu.core import exception
from nova_gpu.virt.inventory import tracker
from tests.fixtures.compute import resource

GROUP = "0b9c8d7e-1111-4222-8333-444455556666"
ONE, TWO = "0000:04:00.0", "0000:05:00.0"


class _Novas:
    """Nova's tracker: what is assigned, and what a claim would get.

    The functional tests have the real one.
    """

    def __init__(self, *free: str) -> None:
        self.provider_tree: Any = object()
        self.assigned_resources: Any = collections.defaultdict(lambda: collections.defaultdict(set))
        self._free = list(free)
        self.claims_for: list[Any] = []
        self.claimant: Callable[[], Any] = lambda: None

    def _claim_resources(self, wanted: Any) -> list[objects.Resource]:
        self.claims_for.append(self.claimant())
        count = wanted[GROUP]["resources"]["PGPU"]
        if count > len(self._free):
            raise nova_exception.ComputeResourcesUnavailable(reason="too few")
        claimed = [resource(GROUP, self._free.pop(0)) for _ in range(count)]
        self.assigned_resources[GROUP]["PGPU"].update(claimed)
        return claimed

    def _release_assigned_resources(self, resources: Any) -> None:
        self.assigned_resources[GROUP]["PGPU"].difference_update(resources)

    @property
    def assigned(self) -> set[str]:
        return {each.identifier for each in self.assigned_resources[GROUP]["PGPU"]}


class TrackerTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.saved: list[list[str]] = []
        self.fails = False
        self.novas = _Novas(ONE, TWO)
        self.tracker = tracker.Tracker(lambda: self.novas)
        self.instance = objects.Instance(uuid=GROUP, resources=objects.ResourceList(objects=[]))
        self.useFixture(fixtures.MockPatchObject(objects.Instance, "save", self._save))

    def _save(self, *args: Any, **kwargs: Any) -> None:
        if self.fails:
            raise RuntimeError("the database is away")
        self.saved.append(self.has())

    def has(self) -> list[str]:
        return [each.identifier for each in self.instance.resources]

    def test_handed_out_and_taken_back(self) -> None:
        self.tracker.hand_out(self.instance, {GROUP: {"PGPU": 2}})
        self.assertEqual(([ONE, TWO], {ONE, TWO}), (self.has(), self.novas.assigned))
        (first, _) = self.instance.resources
        self.tracker.take_back(self.instance, [first])
        self.assertEqual(([TWO], {TWO}), (self.has(), self.novas.assigned))
        self.assertEqual([[ONE, TWO], [TWO]], self.saved)

    def test_too_few(self) -> None:
        self.novas.claimant = lambda: self.tracker.handing_out
        wanted = {GROUP: {"PGPU": 3}}
        self.assertRaises(exception.NoneFree, self.tracker.hand_out, self.instance, wanted)
        self.assertEqual([self.instance], self.novas.claims_for, "known meanwhile")
        self.assertIsNone(self.tracker.handing_out)
        self.novas.provider_tree = None  # before the first period
        wanted = {GROUP: {"PGPU": 1}}
        self.assertRaises(exception.NoneFree, self.tracker.hand_out, self.instance, wanted)
        self.assertEqual(([], set()), (self.has(), self.novas.assigned))

    def test_what_is_not_saved_is_not_done(self) -> None:
        self.fails = True
        wanted = {GROUP: {"PGPU": 1}}
        self.assertRaises(RuntimeError, self.tracker.hand_out, self.instance, wanted)
        self.assertEqual(([], set()), (self.has(), self.novas.assigned))
        self.fails = False
        self.tracker.hand_out(self.instance, wanted)
        self.fails = True
        own = list(self.instance.resources)
        self.assertRaises(RuntimeError, self.tracker.take_back, self.instance, own)
        self.assertEqual(([TWO], {TWO}), (self.has(), self.novas.assigned))
