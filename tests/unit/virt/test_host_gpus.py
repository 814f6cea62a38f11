# SPDX-License-Identifier: Apache-2.0
"""How what a driver has works together; each part has tests of its own."""

from __future__ import annotations

import fixtures
from nova.virt.libvirt import guest as libvirt_guest

from nova_gpu.virt import cards
from tests.fixtures.bases.compute import ONE, ComputeTestCase
from tests.fixtures.compute import devices


class HostGPUsTest(ComputeTestCase):
    def inventory(self) -> tuple[int, int]:
        found = self.compute.tree.data(self.provider).inventory["PGPU"]
        return found["total"], found["reserved"]

    def test_look_that_fails_gives_nobody_a_card(self) -> None:
        """Until one does not"""
        with fixtures.MockPatchObject(cards.Cards, "look", side_effect=ZeroDivisionError):
            self.gpus.periods.refresh()
        self.assertIn("GPU discovery failed", self.log.output)
        self.assertEqual(0, self.gpus.publication.free())
        self.compute.publish()
        self.assertEqual((2, 2), self.inventory())
        self.compute.period()
        self.assertEqual(((2, 0), 3), (self.inventory(), self.gpus.publication.free()))

    def test_what_an_earlier_service_had_begun(self) -> None:
        """A guest that runs keeps its card whatever the service forgot."""
        instance = self.compute.instance({"gpus": "1"}, (self.provider, ONE))
        self.compute.spawn(instance)
        self.compute.restart()
        usage = self.compute.gpus.ledger.now
        self.assertEqual(devices([ONE]), usage.had_by(instance.uuid))
        self.assertEqual(devices([ONE]), usage.taken())

    def test_diagnostics(self) -> None:
        instance = self.compute.instance({"gpus": "1"}, (self.provider, ONE))
        self.compute.spawn(instance)
        guest = libvirt_guest.Guest(self.compute.libvirt.domains[instance.uuid])
        self.useFixture(
            fixtures.MockPatchObject(
                libvirt_guest.Guest, "get_xml_desc", lambda g: g._domain.get_xml_desc()
            )
        )
        found = self.gpus.diagnostics(guest)
        self.assertEqual((ONE, "10de:2335"), (found["gpu0_address"], found["gpu0_product"]))
