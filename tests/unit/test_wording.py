# SPDX-License-Identifier: Apache-2.0
"""Pages and messages say what an operator would say, and nothing that has become untrue."""

from __future__ import annotations

import ast
import pathlib
import re
import unittest
from collections.abc import Iterator

import nova_gpu

ROOT = pathlib.Path(nova_gpu.__file__).parents[1]
PAGES = ROOT / "doc/source"
# Compressed English that users stumbled over, by what is said instead. Each was in a title or a
# message once.
INSTEAD = {
    r"\bDo all agree\b": "name the task: Find contradictions",
    r"\bcannot be said\b": "who does not say what, and why",
    r"\beach exists, but not in one\b": "no single GPU model has all of: ...",
    r"\bis as it was:": "Not repaired: ...",
    r"\bnobody reads it\b": "unknown property; did you mean ...",
    r"\blooked at to the end\b": "GPU discovery failed; ...",
}
# What "Not tried" listed once, and the suite moves does.
TRIED = r"live migration of guests with vGPUs by a real libvirt"


def messages() -> Iterator[tuple[str, str]]:
    """Where each string of the packages' own stands that is no docstring, and the string"""
    for module in sorted([*ROOT.glob("nova_gpu/**/*.py"), *ROOT.glob("osc_gpu/**/*.py")]):
        tree = ast.parse(module.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            text = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and id(node) not in docstrings:
                yield f"{module.relative_to(ROOT)}:{node.lineno}", text


def found(pattern: str, text: str) -> bool:
    return bool(re.search(pattern.replace(" ", r"\s+"), text, re.IGNORECASE))


class WordingTest(unittest.TestCase):
    def test_messages(self) -> None:
        said = list(messages())
        self.assertGreater(len(said), 2000)
        for place, text in said:
            for pattern, instead in INSTEAD.items():
                self.assertFalse(found(pattern, text), f"{place}: {text!r}; instead: {instead}")

    def test_pages(self) -> None:
        pages = [*PAGES.rglob("*.rst"), *PAGES.rglob("*.txt")]
        self.assertGreater(len(pages), 40)
        for page in pages:
            for pattern, instead in INSTEAD.items():
                where = page.relative_to(PAGES)
                self.assertFalse(found(pattern, page.read_text()), f"{where}; instead: {instead}")

    def test_limits(self) -> None:
        text = (PAGES / "admin/limits.rst").read_text()
        _, title, not_tried = text.partition("Not tried\n")
        self.assertTrue(title)
        self.assertFalse(found(TRIED, not_tried))
