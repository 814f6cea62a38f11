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
        for row in rows():
            where = f"{row['Operation']}, {row['Guest']}"
            self.assertTrue(is_there(row["Test"]), where)
            if real := row["On a real libvirt"]:
                self.assertNotEqual("functional", real.partition(".")[0], where)
                self.assertTrue(is_there(real), where)

    def test_every_cell_of_vgpus_has_its_test(self) -> None:
        for row in rows("operations-vgpu"):
            self.assertTrue(is_there(row["Test"]), f"{row['Operation']}, {row['vGPU']}")

    def test_every_cell_of_those_that_gave_theirs_back_has_its_test(self) -> None:
        for row in rows("operations-stopped"):
            for test in filter(None, (row["Test"], row["On a real libvirt"])):
                self.assertTrue(is_there(test), f"{row['Operation']}, {row['Guest']}")
        self.assertEqual({("LXC", "KVM")}, self.modes("operations-stopped", "Guest", 10))

    def test_every_operation_in_every_mode_once(self) -> None:
        self.assertEqual({("LXC", "KVM")}, self.modes("operations", "Guest", 30))

    def test_every_operation_with_every_vgpu_once(self) -> None:
        kinds = ("mediated device", "function with a type", "function as it is", "MIG instance")
        self.assertEqual({kinds}, self.modes("operations-vgpu", "vGPU", 20))

    def modes(self, table: str, column: str, least: int) -> set[tuple[str, ...]]:
        """Those of each operation, of which there are more than *least*"""
        found = collections.defaultdict(list)
        for row in rows(table):
            found[row["Operation"]].append(row[column])
            self.assertRegex(row["What happens"], "^(works|refused: [A-Z])")
        self.assertGreater(len(found), least)
        return {tuple(each) for each in found.values()}

    def test_what_is_not_there_is_seen(self) -> None:
        for name in (
            "functional.test_lifecycle.KVMLifecycleTest.test_host_boot",
            "matrix.operations.stop",
        ):
            self.assertTrue(is_there(name))
            self.assertFalse(is_there(name[:-1]))
