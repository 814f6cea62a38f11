# SPDX-License-Identifier: Apache-2.0
"""Faults of this repository's own history, as changes of a few lines to today's code."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_name("faults.yaml")
_PACKAGES = ("nova_gpu", "osc_gpu", "extensions")


class Outdated(Exception):
    """A fault that no longer fits the code or the tests; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and the tests that are known to find it.

    ``fix``: the commit that fixed it. ``user``: what a user or an operator met. ``find`` and
    ``replace``: lines of today's code, and what they were like; both without their common
    indentation. ``tests``: modules, classes or methods, as ``python -m unittest`` takes them.
    ``tier``: ``run`` if these are among what runs for each change, ``long`` if only a virtual
    machine or a real container can show it.
    """

    name: str
    fix: str
    user: str
    find: str
    replace: str
    tests: tuple[str, ...]
    tier: str = "run"

    def changed(self, root: Path = ROOT) -> tuple[Path, str]:
        """Return the module that has the fault, relative to *root*, and its text with the fault.

        The lines are found wherever they stand, in any module and at any indentation, so that code
        may move. They must stand in one place.
        """
        first, texts = self.find.lstrip().partition("\n")[0], _texts(root)
        # Most modules do not have the first line, for which a search by pattern takes seconds.
        modules = [path for path, text in texts.items() if first in text]
        pattern = _pattern(self.find)
        places = [(path, match) for path in modules for match in pattern.finditer(texts[path])]
        if len(places) != 1:
            where = ", ".join(str(path) for path, _ in places) or "no module"
            raise Outdated(f"its lines are in {where}; write them anew as the code is now")
        ((path, match),) = places
        text = texts[path]
        new = textwrap.indent(self.replace, match["indent"])
        changed = text[: match.start()] + new + text[match.end() :]
        try:
            ast.parse(changed)
        except SyntaxError as error:
            raise Outdated(f"{path} is then no Python: {error}") from error
        return path, changed

    def refuse_missing_tests(self, root: Path = ROOT) -> None:
        """Refuse tests that do not exist."""
        for test in self.tests:
            words = test.split(".")
            sizes = range(len(words), 0, -1)
            folders = (root, *root.glob("extensions/*"))
            modules = (
                (folder.joinpath(*words[:size]).with_suffix(".py"), words[size:])
                for folder in folders
                for size in sizes
            )
            module, rest = next(((m, rest) for m, rest in modules if m.exists()), (None, words))
            # A method may be inherited; a class stands in the module.
            if module is None or (rest and f"class {rest[0]}(" not in module.read_text()):
                raise Outdated(f"there is no {test}; name the tests that find it now")


def load(file: Path = FILE) -> list[Fault]:
    """Return all faults in the order of the file."""
    entries = yaml.safe_load(file.read_text())
    return [Fault(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def named(faults: Sequence[Fault], patterns: Sequence[str]) -> list[Fault]:
    """Return the faults whose name contains one of *patterns*; all if there is none."""
    return [f for f in faults if not patterns or any(text in f.name for text in patterns)]


@functools.cache
def _texts(root: Path) -> Mapping[Path, str]:
    """Return the text of each module of the packages at *root*, by its path there."""
    modules = (path for package in _PACKAGES for path in sorted((root / package).rglob("*.py")))
    return {path.relative_to(root): path.read_text() for path in modules}


def _pattern(lines: str) -> re.Pattern[str]:
    """Return a pattern for whole lines at any common indentation, in the group ``indent``."""
    first, *others = textwrap.dedent(lines).rstrip("\n").split("\n")
    rest = "".join(rf"\n(?P=indent){re.escape(line)}" if line else r"\n" for line in others)
    return re.compile(rf"^(?P<indent> *){re.escape(first)}{rest}\n", re.MULTILINE)
