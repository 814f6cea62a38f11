# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import exception
from nova_gpu.core.scheduling import startable
from nova_gpu.core.scheduling.startable import Detail, Startable

AT = "2026-11-24T12:20Z"


class StartableTest(unittest.TestCase):
    def test_written_and_read(self) -> None:
        for found, text in (
            (Startable("few", AT), f"few at {AT}"),
            (Startable("12", AT), f"12 at {AT}"),
            (Startable("none", AT, "none free"), f"none at {AT}: none free"),
        ):
            self.assertEqual(text, str(found))
            self.assertEqual(found, startable.parse(text))

    def test_as_long_as_an_extra_spec(self) -> None:
        text = str(Startable("none", AT, "much\n to say " * 40))
        self.assertLessEqual(len(text), 255)
        self.assertEqual("none", startable.parse(text).instances)

    def test_what_nobody_publishes(self) -> None:
        for text in ("", "few", f"0 at {AT}", f"some at {AT}", "few at noon", f"few at {AT}; x"):
            with self.subTest(text=text), self.assertRaises(exception.InvalidExtraSpec):
                startable.parse(text)

    def test_told(self) -> None:
        for instances, detail, expected in (
            (0, Detail.NUMBER, "none"),
            (7, Detail.NUMBER, "7"),
            (0, Detail.WORDS, "none"),
            (4, Detail.WORDS, "few"),
            (5, Detail.WORDS, "several"),
        ):
            self.assertEqual(expected, startable.told(instances, detail, 4))
