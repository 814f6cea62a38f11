# SPDX-License-Identifier: Apache-2.0
"""The matrix in the documentation names tests that are there."""

from __future__ import annotations

import ast
import collections
import csv
import functools
import pathlib

import testtools

TESTS = pathlib.Path(__file__).parents[1]
TABLES = TESTS.parent / "doc/source/reference"
_OPERATIONS = TESTS / "matrix/operations.py"


def rows(table: str = "operations") -> list[dict[str, str]]:
    with (TABLES / f"{table}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@functools.cache
def _classes(suite: str, module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse((TESTS / suite / f"{module}.py").read_text())
    return {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}


def is_there(name: str) -> bool:
    """``suite.module.Class.test``, its own or of a class that it is made of, or an operation.

    The modules are read, not imported: the suites need other processes than this one.
    """
    if name.startswith("matrix.operations."):
        return f'"{name.rpartition(".")[2]}": Operation(' in _OPERATIONS.read_text()
    suite, module, owner, test = name.split(".")
    pending = [(module, owner)]
    while pending:
        module, owner = pending.pop()
        if not (TESTS / suite / f"{module}.py").exists():
            continue  # a library's
        if (described := _classes(suite, module).get(owner)) is None:
            continue
        if any(isinstance(each, ast.FunctionDef) and each.name == test for each in described.body):
            return True
        for base in described.bases:
            if isinstance(base, ast.Name):
                pending.append((module, base.id))
            elif isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
                pending.append((base.value.id, base.attr))
    return False


class OperationsTest(testtools.TestCase):
    def test_every_cell_has_its_test(self) -> None:
        vgpus = ("mediated device", "function with a type", "function as it is", "MIG instance")
        for table, column, modes, least in (
            ("operations", "Guest", ("LXC", "KVM"), 30),
            ("operations-stopped", "Guest", ("LXC", "KVM"), 10),
            ("operations-vgpu", "vGPU", vgpus, 20),
        ):
            found = collections.defaultdict(list)
            for row in rows(table):
                found[row["Operation"]].append(row[column])
                where = f"{table}: {row['Operation']}, {row[column]}"
                self.assertRegex(row["What happens"], "^(works|refused: [A-Z])", where)
                self.assertTrue(is_there(row["Test"]), where)
                if real := row.get("On a real libvirt"):
                    self.assertNotEqual("functional", real.partition(".")[0], where)
                    self.assertTrue(is_there(real), where)
            self.assertGreater(len(found), least)
            self.assertEqual({modes}, {tuple(each) for each in found.values()})
        self.assertFalse(is_there("matrix.operations.sto"))
