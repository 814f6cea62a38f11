# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from oslo_utils import strutils

from nova_gpu.core import exception
from nova_gpu.core.flavor import guest_options


class OptionROMTest(unittest.TestCase):
    def test_shown_unless_the_flavor_says_no(self) -> None:
        self.assertTrue(guest_options.option_rom({}))

    def test_the_words_are_those_of_nova(self) -> None:
        for text in ("true", "True", "yes", "on", "1", "t", "y", "false", "no", "Off", "0", "f"):
            with self.subTest(text=text):
                self.assertEqual(
                    strutils.bool_from_string(text, strict=True),
                    guest_options.option_rom({"gpu:option_rom": text}),
                )

    def test_anything_else_is_refused(self) -> None:
        for text in ("", "perhaps", "2", "true false"):
            with self.subTest(text=text), self.assertRaises(exception.InvalidExtraSpec) as caught:
                guest_options.option_rom({"gpu:option_rom": text})
            self.assertIn(f"gpu:option_rom={text!r}", str(caught.exception))
            self.assertIn("true or false", str(caught.exception))
