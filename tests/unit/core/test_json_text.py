# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import pathlib
import unittest

import fixtures
from oslotest import base

from nova_gpu.core import json_text
from nova_gpu.host.nvidia import kernel_log
from nova_gpu.virt import counters

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


class StateTest(base.BaseTestCase):
    """Files of state in which a number is none: they are as ones that cannot be read."""

    def test_each_begins_anew(self) -> None:
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        for text in _BEYOND:
            for name, content in (
                (
                    counters._NAME,
                    f'{{"claims": {text}, "failures": {{}}, "cleanings": {{}}, '
                    '"cleaning_seconds": {}}',
                ),
                ("log", f'{{"boot_id": "b", "sequence": {text}}}'),
            ):
                (folder / name).write_text(content)
            self.assertEqual(counters.Counters(), counters.read(folder))
            self.assertIsNone(kernel_log.load(folder / "log"))
