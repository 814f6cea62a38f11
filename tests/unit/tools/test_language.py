# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast
import unittest

from tools import language


class LanguageTest(unittest.TestCase):
    def test_each_is_found(self) -> None:
        for source in (
            "def read(found): ...",
            "read(lambda each: each)",
            "_said: str",
            "for each in cards: ...",
            "{asked for asked in requests}",
            "with open(path) as given: ...",
            "if kept := read(): ...",
        ):
            with self.subTest(source):
                self.assertEqual(1, len(list(language.names(ast.parse(source)))))
        for text in (
            "A card that nobody\n    has.",
            "It has Nova give the card.",
            "It belongs into it",
            "GPUs beside the disk",
            "``nova-gpu verify`` is as it was: no",
        ):
            with self.subTest(text):
                self.assertEqual(1, len(list(language.phrases(text))))
