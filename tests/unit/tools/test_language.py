# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast
import unittest

from tools import language


class NamesTest(unittest.TestCase):
    def lines(self, source: str) -> list[int]:
        return [line for line, _ in language.names(ast.parse(source))]

    def test_participles(self) -> None:
        for source in (
            "def read(found): ...",
            "read(lambda each: each)",
            "told = 1",
            "_said: str",
            "for each in cards: ...",
            "{asked for asked in requests}",
            "with open(path) as given: ...",
            "if kept := read(): ...",
        ):
            with self.subTest(source):
                self.assertEqual([1], self.lines(source))


class PhrasesTest(unittest.TestCase):
    def test_each(self) -> None:
        for text in (
            "A card that nobody\n    has.",
            "Whoever asks",
            "It has Nova give the card.",
            "These make place for it",
            "It belongs into it",
            "GPUs beside the disk",
            "It is used no more.",
            "``nova-gpu verify`` is as it was: no",
        ):
            with self.subTest(text):
                self.assertEqual(1, len(list(language.phrases(text))))
