# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.language``: checks that names and sentences are plain English.

A variable is the noun of its type, and a sentence names who is affected. Comments are not checked.
"""

from __future__ import annotations

import ast
import pathlib
import re
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = ("nova_gpu", "osc_gpu", "extensions/*/*_gpu_*", "lab", "tools")
# Of these the names alone are checked
TESTS = ("benchmarks", "extensions/*/tests", "tests")
PAGES = ("*.rst", "lab/*.rst", "doc/source/**/*.rst", "doc/source/**/*.txt")
# Participles, which name what was done to a thing instead of the thing
NAMES = {"asked", "each", "found", "given", "kept", "looked", "offered", "said", "told"}
# Phrases that readers stumble over, and what to write instead
PHRASES = {
    r"nobody|somebody|anybody|whoever": "name who: new instances, other guests, the operator",
    r"(?<!to )(?:has|have) (?!to )\w+ (?:do|look|make|give|bind|tell)\b": "let, make, register",
    r"makes? place": "make room",
    r"belongs? into": "belong in",
    r"(?<!param )(?<![\w.`*])beside(?![\w`])": "next to, near, in addition to, as well as",
    r"no more(?= ?[.,;:)])": "no longer",
    r"do all agree": "name the task: Find contradictions",
    r"cannot be said": "who does not say what, and why",
    r"each exists, but not in one": "no single GPU model has all of: ...",
    r"is as it was:": "Not repaired: ...",
    r"looked at to the end": "GPU discovery failed; ...",
}
_PHRASES = [
    (re.compile(rf"\b(?:{phrase})", re.IGNORECASE), instead) for phrase, instead in PHRASES.items()
]


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield a line number and the remedy for each variable or attribute that is a participle."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        else:
            continue
        if name.strip("_") in NAMES:
            yield node.lineno, f"{name!r} is no noun: name the variable after its type"


def phrases(text: str) -> Iterator[str]:
    """Yield a message for each phrase in *text* that readers stumble over, with a better one."""
    words = " ".join(text.split())
    for pattern, instead in _PHRASES:
        if match := pattern.search(words):
            yield f"{match[0]!r}; write instead: {instead}"


def problems() -> Iterator[str]:
    """Yield a message for each name and phrase in this repository that is not plain English."""
    for package in (*PACKAGES, *TESTS):
        for path in sorted(ROOT.glob(f"{package}/**/*.py")):
            if path == pathlib.Path(__file__):
                continue
            tree = ast.parse(path.read_text())
            place = path.relative_to(ROOT)
            yield from (f"{place}:{line}: {problem}" for line, problem in names(tree))
            for node in ast.walk(tree) if package in PACKAGES else ():
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield from (f"{place}:{node.lineno}: {text}" for text in phrases(node.value))
    for path in sorted(path for pattern in PAGES for path in ROOT.glob(pattern)):
        yield from (f"{path.relative_to(ROOT)}: {text}" for text in phrases(path.read_text()))


if __name__ == "__main__":
    lines = list(problems())
    sys.exit("\n".join(lines) if lines else 0)
