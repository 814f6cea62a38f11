# SPDX-License-Identifier: Apache-2.0
"""What tests replace is there: ``fixtures.MonkeyPatch`` would make it where it is not."""

from __future__ import annotations

import ast
import pathlib
import pkgutil
import unittest
from collections.abc import Iterator

import tests

_PATCHES = {"MonkeyPatch", "patch"}


class PatchesTest(unittest.TestCase):
    def test_each_is_of_something(self) -> None:
        found = dict(_patched())
        self.assertTrue(found)
        for path, name in found.items():
            with self.subTest(f"{path}: {name}"):
                pkgutil.resolve_name(name)


def _patched() -> Iterator[tuple[str, str]]:
    """Where something of the package is replaced by its name, and that name"""
    folder = pathlib.Path(tests.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            if not (isinstance(node.func, ast.Attribute) and node.func.attr in _PATCHES):
                continue
            name = getattr(node.args[0], "value", None)
            if isinstance(name, str) and name.startswith("nova_gpu."):
                yield f"{path.relative_to(folder)}:{node.lineno}", name
