# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import exception
from nova_gpu.core.flavor import request, validation
from nova_gpu.core.flavor.preemptible import End, Preemptible

RELEASE = {"gpu:on_stop": "release"}


class PreemptibleTest(unittest.TestCase):
    def test_what_is_said(self) -> None:
        for text, seconds in (("0s", 0), ("90s", 90), (" 30M ", 1800), ("2h", 7200), ("1d", 86400)):
            asked = request.of({"gpu:preemptible": text, **RELEASE})
            self.assertEqual(Preemptible(seconds, End.STOP), asked.preemptible)
            self.assertTrue(asked.is_preemptible)
        deleted = request.of({"gpu:preemptible": "1h", "gpu:on_preempt": "Delete"})
        self.assertEqual(Preemptible(3600, End.DELETE), deleted.preemptible)

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
                asked = request.FlavorRequest(specs)
                with self.assertRaises(exception.InvalidExtraSpec) as caught:
                    _ = asked.preemptible
                self.assertEqual(key, caught.exception.key)
                self.assertEqual([key], [m.partition("=")[0] for m in validation.mistakes(asked)])
                # Its instances are started all the same, and stay.
                asked.check()
                self.assertEqual("gpu:preemptible" in specs, asked.is_preemptible)
