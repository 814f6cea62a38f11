# SPDX-License-Identifier: Apache-2.0
"""What is asked for; the answers are in tests/functional/test_room.py."""

from __future__ import annotations

import contextlib
import io
import unittest
from types import SimpleNamespace

from osc_gpu.fleet import move_commands


class CountTest(unittest.TestCase):
    def parse(self, *arguments: str) -> int:
        parser = move_commands.MakePlace(SimpleNamespace(), None).get_parser("openstack")
        count: int = parser.parse_args(["eight", *arguments]).count
        return count

    def test_numbers(self) -> None:
        self.assertEqual(1, self.parse())
        self.assertEqual(12, self.parse("--count", "12"))

    def test_anything_else_is_refused(self) -> None:
        for text in ("0", "-1", "1.5", "many", "", "99999999", "\N{ARABIC-INDIC DIGIT FOUR}"):
            with (
                self.subTest(text=text),
                contextlib.redirect_stderr(io.StringIO()) as said,
                self.assertRaises(SystemExit),
            ):
                self.parse(f"--count={text}")
            self.assertIn("is not a number of instances from 1 to", said.getvalue())
