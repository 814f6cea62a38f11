# SPDX-License-Identifier: Apache-2.0
"""The matrix in the documentation names tests that are there."""

from __future__ import annotations

import collections
import csv
import functools

import testtools

from tests.fixtures.checkout import EXTENSIONS, ROOT

TABLES = ROOT / "doc/source/reference"


@functools.cache
def texts(suite: str) -> dict[str, str]:
    """Return the modules of a suite, which are not imported: they need other processes."""
    folders = (ROOT / "tests", *(path / "tests" for path in EXTENSIONS))
    modules = (path for folder in folders for path in (folder / suite).glob("*.py"))
    return {path.stem: path.read_text() for path in modules}


def is_there(name: str) -> bool:
    """``suite.module.Class.test``, which may be inherited, or ``matrix.operations.operation``"""
    suite, module, owner, *test = name.split(".")
    if suite == "matrix":
        return f'"{owner}": Operation(' in texts(suite)[module]
    is_defined = any(f"def {test[0]}(" in text for text in texts(suite).values())
    return is_defined and f"class {owner}(" in texts(suite).get(module, "")


class OperationsTest(testtools.TestCase):
    def test_every_cell_has_its_test(self) -> None:
        vgpus = ("mediated device", "function with a type", "function as it is", "MIG instance")
        for table, column, modes, least in (
            ("operations", "Guest", ("LXC", "KVM"), 30),
            ("operations-stopped", "Guest", ("LXC", "KVM"), 10),
            ("operations-vgpu", "vGPU", vgpus, 20),
        ):
            values_by_operation = collections.defaultdict(list)
            with (TABLES / f"{table}.csv").open(newline="") as file:
                rows = list(csv.DictReader(file))
            for row in rows:
                values_by_operation[row["Operation"]].append(row[column])
                where = f"{table}: {row['Operation']}, {row[column]}"
                self.assertRegex(row["What happens"], "^(works|refused: [A-Z])", where)
                self.assertTrue(is_there(row["Test"]), where)
                if real := row.get("On a real libvirt"):
                    self.assertNotEqual("functional", real.partition(".")[0], where)
                    self.assertTrue(is_there(real), where)
            self.assertGreater(len(values_by_operation), least)
            self.assertEqual({modes}, {tuple(values) for values in values_by_operation.values()})
        self.assertFalse(is_there("matrix.operations.sto"))
