# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import exception
from nova_gpu.core.flavor import quantity


class QuantityTest(unittest.TestCase):
    def test_table(self) -> None:
        for text, matching, others in (
            (">= 40960", ["40960", 81559], ["40959", None, "UNKNOWN", "", "-1"]),
            ("= 40960", [40960, 81559], [40959]),
            (">=40960", [40960], [40959]),
            ("40960", [40960, 81559], [40959]),
            ("== 40960", [40960], [40959, 40961]),
            ("<= 40960", [1, 40960], [40961, None]),
        ):
            stated = quantity.parse("gpu:memory_mib", text)
            for value in matching:
                with self.subTest(text=text, value=value):
                    self.assertTrue(stated.matches(value))
            for value in others:
                with self.subTest(text=text, value=value):
                    self.assertFalse(stated.matches(value))

    def test_refused(self) -> None:
        for text in ("", ">=", "lots", "40 GiB", "0", "-1", "> 5", "!= 5", ">= 1 2", "1.5", "1e3"):
            with self.subTest(text=text), self.assertRaises(exception.InvalidExtraSpec) as caught:
                quantity.parse("gpu:memory_mib", text)
            for part in ("gpu:memory_mib", repr(text), quantity.ALLOWED):
                self.assertIn(part, str(caught.exception))

    def test_the_one_number(self) -> None:
        for text, expected in (("== 5", "5"), (">= 5", None), ("<= 5", None)):
            self.assertEqual(expected, quantity.parse("gpu:memory_mib", text).equal_to)
