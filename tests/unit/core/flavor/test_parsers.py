# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from oslo_utils import strutils

from nova_gpu.core import exception
from nova_gpu.core.flavor import extra_spec, parsers
from nova_gpu.core.flavor.parsers import Consent


class CountTest(unittest.TestCase):
    def test_all_that_mean_two(self) -> None:
        for text in ("= 2", "2", "== 2", ">= 2", "  2 ", "=  2", "=2", ">=2"):
            with self.subTest(text=text):
                self.assertEqual(2, parsers.parse_count(text))

    def test_refused(self) -> None:
        for text, reason in (
            ("", "exactly the number"),
            ("=", "exactly the number"),
            ("<= 2", "exactly the number"),
            ("!= 2", "exactly the number"),
            ("s== 2", "exactly the number"),
            ("<or> 2 <or> 4", "exactly the number"),
            ("<in> 2", "exactly the number"),
            ("2 4", "exactly the number"),
            ("two", "not a whole number"),
            ("-1", "not a whole number"),
            ("2.0", "not a whole number"),
            ("\N{ARABIC-INDIC DIGIT TWO}", "not a whole number"),
            ("0", "leave the property out"),
            ("= 0", "leave the property out"),
            ("1025", "no host has that many"),
            ("9" * 40, "not a whole number"),
        ):
            with self.subTest(text=text), self.assertRaises(exception.InvalidExtraSpec) as caught:
                parsers.parse_count(text)
            for part in ("gpus", repr(text), reason, parsers.ALLOWED_COUNTS):
                self.assertIn(part, str(caught.exception))


class SwitchTest(unittest.TestCase):
    def switched(self, text: str) -> bool:
        return parsers.parse_switch("gpu:option_rom", {"gpu:option_rom": text}, otherwise=True)

    def test_nothing_stated(self) -> None:
        for otherwise in (True, False):
            self.assertIs(
                otherwise, parsers.parse_switch("gpu:option_rom", {}, otherwise=otherwise)
            )

    def test_the_words_are_those_of_nova(self) -> None:
        for text in ("true", "True", "yes", "on", "1", "t", "y", "false", "no", "Off", "0", "f"):
            with self.subTest(text=text):
                self.assertEqual(strutils.bool_from_string(text, strict=True), self.switched(text))


class ConsentTest(unittest.TestCase):
    def test_words(self) -> None:
        self.assertIsNone(extra_spec.MOVE.of({}))
        for text, consent in (("live", Consent.LIVE), (" Cold ", Consent.COLD), ("none", "none")):
            self.assertEqual(consent, extra_spec.MOVE.of({"gpu:move": text}))
        for text in ("", "yes", "live cold", "never"):
            with self.subTest(text=text), self.assertRaises(exception.InvalidExtraSpec) as caught:
                extra_spec.MOVE.of({"gpu:move": text})
            self.assertIn(f"gpu:move={text!r}", str(caught.exception))
            self.assertIn("live or cold or none", str(caught.exception))
