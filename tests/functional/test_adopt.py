# SPDX-License-Identifier: Apache-2.0
"""Instances that have cards by stock Nova are taken over as they run."""

from __future__ import annotations

from typing import Any
from unittest import mock

from nova import objects

from nova_gpu.stock.core.holding import NotTakenOver
from nova_gpu.stock.virt import adoption
from tests.functional import stock


class AdoptTest(stock.Adopting):
    def test_an_instance_that_becomes_busy_in_the_same_moment(self) -> None:
        server = self.boot_by_alias()
        had = self.has(server)
        self.change_driver()
        takeover, (holding,) = self.takeover(), self.look().holdings
        takeover.count(holding)
        settled = adoption.settled

        def and_then_it_is_resized(*args: Any) -> objects.Instance:
            instance = settled(*args)
            if instance.resources:
                instance.task_state = "resize_prep"
                instance.save()
            return settled(*args)

        with mock.patch.object(adoption, "settled", and_then_it_is_resized):
            self.assertRaises(NotTakenOver, takeover.record, holding)
        self.assertEqual([], self.recorded(server))
        spec = self.instance(server).flavor.extra_specs
        self.assertEqual({"pci_passthrough:alias": "a2:1"}, spec)
        self.assertEqual(1, len(self.instance(server).pci_requests.requests))
        instance = self.instance(server)
        instance.task_state = None
        instance.save()
        self.finish()
        self.assertAdopted(server, had)

    def test_what_an_evacuation_has_left(self) -> None:
        """The instance has cards at the same addresses on the other host."""
        server = self.boot_by_alias()
        (before,) = self.look("host1").holdings
        self.start_host("host2")
        self.force_down("host1")
        self._evacuate_server(server, expected_host="host2")
        self.assertRaises(NotTakenOver, self.takeover("host1").count, before)
        self.computes["host2"].stop()
        self.assertEqual(0, self.adopt("host2"))
        self.assertEqual(1, self.adopt("host1"))
        (holding,) = self.look("host1").holdings
        self.assertIn("it is on the host host2", str(holding.obstacles[0]))
        self.assertEqual({"host2": 1}, self.allocated(server))
        self.bring_back("host1")
        self.device_spec()
        self.take_driver()
        self._start_server(server)
        self.assertGPUs(server, self.recorded(server), "host2")
