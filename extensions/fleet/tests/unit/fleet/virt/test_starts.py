# SPDX-License-Identifier: Apache-2.0
"""Starts on hosts that are drained or reserved, of instances that gave their GPUs back."""

from __future__ import annotations

import datetime

from oslo_utils import timeutils

from nova_gpu.core import exception
from nova_gpu_fleet.core import closed_hosts, names
from tests.fixtures.bases.compute import ONE, TWO
from tests.fixtures.bases.stops import RELEASES, StartsTestCase


class ClosedTest(StartsTestCase):
    def assertRefused(self, message: str) -> None:
        refused = self.assertRaises(exception.NoneFree, self.counting.count, self.instance)
        self.assertIn(message, str(refused))

    def test_drained(self) -> None:
        self.placement.node_traits = {names.DRAINED}
        self.assertRefused("its host is drained; start it when some are free, or have it come")
        for word, message in (
            ("true", "openstack gpu start has it come"),
            ("perhaps", "shelve and"),
        ):
            self.instance.flavor.extra_specs = RELEASES | {"gpu:on_stop_move": word}
            self.assertRefused(message)

    def test_kept_for_who_is_not_preemptible(self) -> None:
        until = timeutils.utcnow() + datetime.timedelta(minutes=10)
        self.placement.node_traits = {closed_hosts.reserving(until)}
        self.instance.flavor.extra_specs = RELEASES | {"gpu:preemptible": "1h"}
        self.assertRefused("instances that are not preemptible, for now; start it when")
        self.instance.flavor.extra_specs = RELEASES
        self.counting.count(self.instance)
        self.assertEqual([ONE, TWO], self.has(self.instance))
