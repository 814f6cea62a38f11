# SPDX-License-Identifier: Apache-2.0
"""What an instance starts with is counted; tests/functional/test_counted.py has whole clouds."""

from __future__ import annotations

import datetime
import types
from unittest import mock

from nova import objects
from oslo_utils import timeutils

from nova_gpu.core import names
from nova_gpu.core.placement import reserved_hosts
from tests.fixtures.bases.compute import ONE, TWO
from tests.fixtures.bases.stops import OTHER, RELEASES, StartsTestCase


class ChooseTest(StartsTestCase):
    def test_others_have_them(self) -> None:
        self.placement.counted[OTHER] = {self.group: {"resources": {"PGPU": 1}}}
        refused = self.assertRefused("at most 1 free on its host")
        self.assertIn(f"in use by {OTHER}", str(refused))

    def test_drained(self) -> None:
        self.placement.node_traits = {names.DRAINED}
        self.assertRefused("its host is drained; start it when some are free, or have it come")
        for word, said in (("true", "openstack gpu start has it come"), ("perhaps", "shelve and")):
            self.instance.flavor.extra_specs = RELEASES | {"gpu:on_stop_move": word}
            self.assertRefused(said)

    def test_kept_for_who_is_not_preemptible(self) -> None:
        until = timeutils.utcnow() + datetime.timedelta(minutes=10)
        self.placement.node_traits = {reserved_hosts.trait(until)}
        self.instance.flavor.extra_specs = RELEASES | {"gpu:preemptible": "1h"}
        self.assertRefused("instances that are not preemptible, for now; start it when")
        self.instance.flavor.extra_specs = RELEASES
        self.counting.count(self.instance)
        self.assertEqual([ONE, TWO], self.has(self.instance))

    def test_other_than_the_image_wants(self) -> None:
        wanted = {"traits_required": ["CUSTOM_GPU_ARCH_FERMI"]}
        image = types.SimpleNamespace(properties=wanted)
        with mock.patch.object(objects.Instance, "image_meta", image):
            self.assertRefused("at most 2 free")
