# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import datetime
import unittest
from unittest import mock

from osc_lib import exceptions

from nova_gpu.core import exception
from nova_gpu.core.flavor import request, validation
from nova_gpu_fleet.core import closed_hosts
from nova_gpu_fleet.core.preemptible import End, Preemptible, is_preemptible
from osc_gpu import flavors
from osc_gpu_fleet import hooks

RELEASE = {"gpu:on_stop": "release"}


class PreemptibleTest(unittest.TestCase):
    def test_what_is_said(self) -> None:
        for text, seconds in (("0s", 0), ("90s", 90), (" 30M ", 1800), ("2h", 7200), ("1d", 86400)):
            specs = {"gpu:preemptible": text, **RELEASE}
            self.assertEqual(Preemptible(seconds, End.STOP), Preemptible.of(specs))
            self.assertTrue(is_preemptible(specs))
        deleted = {"gpu:preemptible": "1h", "gpu:on_preempt": "Delete"}
        self.assertEqual(Preemptible(3600, End.DELETE), Preemptible.of(deleted))

    def test_what_cannot_be_used(self) -> None:
        for specs, key in (
            ({"gpu:preemptible": "30", **RELEASE}, "gpu:preemptible"),
            ({"gpu:preemptible": "-1s", **RELEASE}, "gpu:preemptible"),
            ({"gpu:preemptible": "1.5h", **RELEASE}, "gpu:preemptible"),
            ({"gpu:preemptible": "", **RELEASE}, "gpu:preemptible"),
            ({"gpu:preemptible": "1h", "gpu:on_preempt": "shelve"}, "gpu:on_preempt"),
            ({"gpu:preemptible": "yes", "gpu:on_preempt": "delete"}, "gpu:preemptible"),
            # It would be stopped for nothing.
            ({"gpu:preemptible": "1h"}, "gpu:preemptible"),
            ({"gpu:preemptible": "1h", "gpu:on_stop": "keep"}, "gpu:preemptible"),
            # And deleted by nobody.
            ({"gpu:on_preempt": "delete"}, "gpu:on_preempt"),
        ):
            with self.subTest(specs=specs):
                flavor_request = request.FlavorRequest(specs)
                with self.assertRaises(exception.InvalidExtraSpec) as caught:
                    Preemptible.of(specs)
                self.assertEqual(key, caught.exception.key)
                self.assertEqual(
                    [key], [m.partition("=")[0] for m in validation.mistakes(flavor_request)]
                )
                # Its instances are started all the same, and stay.
                flavor_request.check()
                self.assertEqual("gpu:preemptible" in specs, is_preemptible(specs))

    def test_every_mistake_and_no_consequence(self) -> None:
        wrong = dict.fromkeys(("gpu:preemptible", "gpu:on_preempt", "gpu:on_stop"), "maybe")
        more = dict.fromkeys(("gpu:move", "gpu:on_stop_move"), "maybe")
        for specs in (wrong | more, *({key: wrong[key], "gpu:on_stop": "maybe"} for key in wrong)):
            mistakes = [m.partition("=")[0] for m in validation.mistakes(request.of(specs))]
            self.assertEqual(sorted(specs), sorted(mistakes))

    def test_summary(self) -> None:
        specs = {"gpus": "1", "gpu:preemptible": "30m", **RELEASE}
        summary = "1 GPU, preemptible after 30m, then stopped"
        self.assertEqual(summary, flavors.in_words(request.of(specs)))
        self.assertEqual("1 GPU", flavors.in_words(request.of(specs | {"gpu:on_stop": "keep"})))

    def test_a_flavor_that_the_client_makes(self) -> None:
        for specs, message in (
            ({"gpu:preemptible": "1h"}, "would keep its GPUs"),
            ({"gpu:on_preempt": "delete"}, "may not be taken"),
        ):
            with self.assertRaisesRegex(exceptions.CommandError, message):
                flavors.properties({"gpus": 1}, {}, specs)
        stated = argparse.Namespace(**{"gpu:preemptible": "1h", "gpu:on_preempt": None})
        hooks.CreatePreemptibleFlavor(mock.Mock()).before(stated)
        self.assertEqual("release", vars(stated)["gpu:on_stop"])

    def test_traits_that_tenants_make(self) -> None:
        now = datetime.datetime(2026, 10, 1, 12)
        closing = closed_hosts.RESERVED
        later = closed_hosts.reserving(now + datetime.timedelta(seconds=1))
        names = ["", "CUSTOM_GPU_KEPT_UNTIL_", "CUSTOM_GPU_KEPT_UNTIL_x", later]
        self.assertEqual({later}, closing.in_force([*names, closed_hosts.reserving(now)], now))
