# SPDX-License-Identifier: Apache-2.0
"""One guest after another on a host of whole cards: each gets what it asks for, and clean."""

from __future__ import annotations

import os
from unittest import mock

import fixtures
from nova import exception as nova_exception
from nova import objects
from oslotest import base

from nova_gpu.virt.lifecycle.start import Kind
from tests.fixtures import hosts
from tests.fixtures.compute import Compute, resources
from tests.fixtures.histories import Domain

ONE, TWO, THREE = "0000:3b:00.0", "0000:af:00.0", "0000:d8:00.0"


class GuestsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        for address in (ONE, TWO, THREE):
            self.host.add_gpu(address, "10de", "2335", driver="vfio-pci")
        self.compute = Compute(self.host)

    def begin(self, **options: object) -> None:
        self.useFixture(self.compute)
        self.compute.config(group="gpu", **options)
        self.compute.restart()
        self.compute.gpus.releases._retries.wait()
        self.reset = mock.Mock()
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.privsep.cleaning.reset", self.reset))
        self.provider = self.compute.provider("2335")

    def instance(self, *cards: str) -> objects.Instance:
        had = [(self.provider, card) for card in cards]
        return self.compute.instance({"gpus": f"= {len(cards)}"}, *had)

    def inventory(self) -> tuple[int, int]:
        """Total and reserved, as Placement has them"""
        found = self.compute.tree.data(self.provider).inventory["PGPU"]
        return found["total"], found["reserved"]

    def test_none_starts_without_what_its_flavor_asks_for(self) -> None:
        self.begin()
        instance = self.compute.instance({"gpus": "= 1"})
        refused = (
            nova_exception.BuildAbortException,
            nova_exception.ComputeResourcesUnavailable,
        )
        self.assertRaises(refused, self.compute.spawn, instance)
        self.assertEqual({}, self.compute.libvirt.domains)

    def test_a_card_of_a_guest_has_no_proof_that_it_is_clean(self) -> None:
        """So a service that begins after the guest has gone cleans it."""
        self.begin()
        folder = self.host.root / "state/gpu-clean"
        self.assertEqual([f"{card}.json" for card in (ONE, TWO, THREE)], sorted(os.listdir(folder)))
        self.compute.spawn(self.instance(ONE))
        self.assertEqual([f"{card}.json" for card in (TWO, THREE)], sorted(os.listdir(folder)))

    def test_a_reboot_cleans_nothing(self) -> None:
        self.begin()
        instance = self.instance(ONE)
        self.compute.spawn(instance)
        with self.compute.gpus.starts.starting(instance, Kind.REBOOT):
            with self.compute.gpus.releases.domain_goes(instance):
                domain = self.compute.libvirt.domains.pop(instance.uuid)
            self.compute.libvirt.domains[instance.uuid] = Domain(instance.uuid, domain.xml)
        self.reset.assert_not_called()

    def test_what_a_resize_on_the_same_host_has_left_is_cleaned(self) -> None:
        self.begin()
        instance = self.instance(ONE)
        self.compute.spawn(instance)
        instance.migration_context = objects.MigrationContext(
            old_resources=resources((self.provider, ONE))
        )
        instance.resources = resources((self.provider, TWO))
        self.compute.spawn(instance, Kind.MOVE)
        self.reset.assert_not_called()
        self.compute.gpus.releases.confirmed(instance)
        self.reset.assert_called_once_with(ONE)

    def test_cards_that_links_join_are_one_guests(self) -> None:
        self.begin(link_groups=[f"{ONE} {TWO}"])
        self.assertEqual((3, 0), self.inventory())
        self.compute.spawn(self.instance(ONE))
        self.compute.period()
        self.assertEqual((3, 1), self.inventory())
