# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import testtools
from nova.compute import utils as compute_utils
from nova.objects import base as objects_base

from nova_gpu.virt.lifecycle import refusals


class RescueRefusedTest(testtools.TestCase):
    """As Nova writes down the outcome of an action, here and by the conductor."""

    def test_its_text_is_written_down(self) -> None:
        refused = refusals.RescueRefused("no rescue of this")
        written = compute_utils.exception_to_dict(refused)["message"]
        self.assertEqual("no rescue of this", written)

    def test_its_text_is_sent_to_the_conductor(self) -> None:
        words = {"exc_val": refusals.RescueRefused("no rescue of this")}
        sent = objects_base.NovaObjectSerializer().serialize_entity(None, words)
        self.assertEqual({"exc_val": "no rescue of this"}, sent)

    def test_no_exception_that_nova_would_catch(self) -> None:
        self.assertFalse(issubclass(refusals.RescueRefused, Exception))
