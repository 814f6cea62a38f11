# SPDX-License-Identifier: Apache-2.0
"""What a host's periods find, publish and count; each part has tests of its own."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import fixtures
from nova import objects

from nova_gpu.conf import CONF
from nova_gpu.core import exception, unavailability
from nova_gpu.virt import counters, offered_cards
from nova_gpu.virt.inventory import discovery
from nova_gpu.virt.inventory.card_inventory import CardInventory
from tests.fixtures.bases.compute import ONE, TWO, ComputeTestCase

NEW = "0000:d8:00.0"


class HostGPUsTest(ComputeTestCase):
    def inventory(self) -> tuple[int, int]:
        inventory = self.compute.tree.data(self.provider).inventory["PGPU"]
        return inventory["total"], inventory["reserved"]

    def offered(self) -> dict[str, str | None]:
        """The whole cards, each with why nobody new is given it"""
        return {
            str(a): unavailability.text(group.unavailable.get(a, ()))
            for group in self.gpus._card_inventory.groups().values()
            for a in group.gpus
        }

    def resources(self) -> set[objects.Resource]:
        return set(self.compute.tree.data(self.provider).resources["PGPU"])

    def boot(self) -> objects.Instance:
        instance = self.compute.instance({"gpus": "1"}, (self.provider, ONE))
        self.compute.spawn(instance)
        return instance

    def test_cards_that_come_go_and_fail(self) -> None:
        self.host.remove(TWO)
        self.host.add_gpu(NEW, "10de", "2335", driver="vfio-pci")
        look: Callable[[], Any] = self.gpus.periods.cards.look
        say, words = look(), f"GPU {NEW} (H200 SXM 141GB) is offered to instances"
        self.assertNotIn(words, self.log.output, "said once it is known whose")
        say()
        look()()
        self.assertEqual(1, self.log.output.count(words))
        gone = {ONE: None, NEW: None, TWO: "it is no longer on the PCI bus"}
        self.assertEqual(gone, self.offered())
        lost = exception.DiscoveryFailed("/sys", "no sysfs")
        with fixtures.MockPatchObject(discovery.Discovery, "find", side_effect=lost):
            self.assertIsNone(look())
        self.assertEqual(gone, self.offered())
        self.assertIn("nova-compute goes on with the GPUs' last known state", self.log.output)
        card = next(gpu for gpu in self.gpus._card_inventory.cards() if str(gpu.address) == NEW)
        self.gpus.releases.quarantine(card, "it is mute", "boot the host")
        look()
        self.assertIn("it is mute", str(self.offered()[NEW]))
        self.assertIsNone(self.offered()[ONE])

    def test_look_that_fails_gives_nobody_a_card(self) -> None:
        """Until one does not"""
        seen = counters.read(pathlib.Path(CONF.state_path))
        self.assertEqual(3, seen.free)
        with fixtures.MockPatchObject(offered_cards.Cards, "look", side_effect=ZeroDivisionError):
            self.gpus.periods.refresh()
        self.assertIn("GPU discovery failed", self.log.output)
        self.assertEqual(seen, counters.read(pathlib.Path(CONF.state_path)))
        self.assertEqual(0, self.gpus.assigned.free())
        self.compute.publish()
        self.assertEqual((2, 2), self.inventory())
        self.compute.period()
        self.assertEqual(((2, 0), 3), (self.inventory(), self.gpus.assigned.free()))
        self.assertGreater(counters.read(pathlib.Path(CONF.state_path)).period_at, seen.period_at)
        # The service starts, for instances without GPUs.
        with fixtures.MockPatchObject(discovery.Discovery, "find", side_effect=ZeroDivisionError):
            self.compute.restart()

    def test_an_end_waits_for_the_disk_once_for_each_card(self) -> None:
        """For its proof, the file and its name; not for what is only counted"""
        both = self.compute.instance({"gpus": "2"}, (self.provider, ONE), (self.provider, TWO))
        self.compute.spawn(both)
        before = counters.read(pathlib.Path(CONF.state_path)).cleanings["clean"]
        with mock.patch.object(os, "fsync") as waited:
            self.compute.delete(both)
        cleanings = counters.read(pathlib.Path(CONF.state_path)).cleanings["clean"]
        self.assertEqual(2, cleanings - before)
        self.assertEqual(2 * 2, waited.call_count)

    def test_inventory_that_fails_takes_no_claim(self) -> None:
        """As at the first of a service, whose tree Placement filled without the devices"""
        before = self.resources()
        self.compute.tree.update_resources(self.provider, {})
        with fixtures.MockPatchObject(CardInventory, "publish", side_effect=ZeroDivisionError):
            self.compute.publish()
        self.assertIn("Failed to publish all of this host's GPUs", self.log.output)
        self.assertEqual(set(), self.resources())
        self.compute.publish()
        self.assertEqual((2, before), (len(before), self.resources()))
