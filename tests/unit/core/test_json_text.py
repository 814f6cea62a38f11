# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import unittest

from nova_gpu.core import json_text

_BEYOND = ("Infinity", "-Infinity", "NaN", "1e999", "-1e999", "1" + "0" * 400, str(2**64))


class ParseTest(unittest.TestCase):
    def test_what_json_says(self) -> None:
        for value in ({"a": [1, -2.5, None, True, "Infinity"]}, 2**64 - 1, -(2**63), 1e300):
            self.assertEqual(value, json_text.parse(json.dumps(value)))
        self.assertEqual([("a", 1)], json_text.parse('{"a": 1}', list))

    def test_numbers_that_are_none(self) -> None:
        for text in (*_BEYOND, "1" * 5000):
            for document in (text, f'{{"a": [{text}]}}'):
                with self.assertRaisesRegex(ValueError, "is not a JSON number of at most 64 bits"):
                    json_text.parse(document)

    def test_what_is_none(self) -> None:
        for text in ("", "{", b"\xff", "[" * 100_000):
            with self.assertRaises(ValueError):
                json_text.parse(text)
