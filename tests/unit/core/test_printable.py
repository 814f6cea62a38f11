# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova_gpu.core import printable

_INSTEAD = "\N{REPLACEMENT CHARACTER}"


class PrintableTest(unittest.TestCase):
    def test_what_is_seen(self) -> None:
        for text, shown in (
            ("train-3 \u00e4\u6f22", "train-3 \u00e4\u6f22"),
            ("a\r\n\tb\u00a0c\u3000d", "a   b c d"),
            ("\x1b[2K\x9b1m", f"{_INSTEAD}[2K{_INSTEAD}1m"),
            ("\u202eevil\u2066\u2028\udc80", f"{_INSTEAD}evil{_INSTEAD * 3}"),
        ):
            self.assertEqual(shown, printable.printable(text))

    def test_it_is_cut(self) -> None:
        self.assertEqual("a" * 255, printable.printable("a" * 255))
        self.assertEqual("a" * 252 + "...", printable.printable("a" * 256))
        self.assertEqual("aaaaa...", printable.printable("a" * 10**6, 8))

    def test_lines_stay_lines(self) -> None:
        long = "b" * 5000
        shown = printable.within({"a\x1b": ["1\n2\x07", (long, 3, None)]})
        self.assertEqual(
            {f"a{_INSTEAD}": [f"1\n2{_INSTEAD}", ("b" * 1997 + "...", 3, None)]}, shown
        )
