# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import exception
from nova_gpu.core.flavor import consent
from nova_gpu.core.flavor.consent import Consent


class ParseTest(unittest.TestCase):
    def test_words(self) -> None:
        self.assertIs(Consent.LIVE, consent.parse({}))
        for text, said in (
            ("live", Consent.LIVE),
            (" Cold ", Consent.COLD),
            ("none", Consent.NONE),
        ):
            with self.subTest(text=text):
                self.assertIs(said, consent.parse({"gpu:move": text}))

    def test_anything_else_is_refused(self) -> None:
        for text in ("", "yes", "live cold", "never"):
            with self.subTest(text=text), self.assertRaises(exception.InvalidExtraSpec) as caught:
                consent.parse({"gpu:move": text})
            self.assertIn(f"gpu:move={text!r}", str(caught.exception))
            self.assertIn("live or cold or none", str(caught.exception))
