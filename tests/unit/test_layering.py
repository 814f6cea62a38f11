# SPDX-License-Identifier: Apache-2.0
"""What import-linter cannot say of the layers; pyproject.toml has its contracts."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
import subprocess
import sys
import tomllib
import unittest
from typing import ClassVar

import nova_gpu
from nova_gpu.core import model
from tests.fixtures.sources import imports

PACKAGE = pathlib.Path(nova_gpu.__file__).parent
ROOT = PACKAGE.parent
CLIENT = ROOT / "osc_gpu"
# A packager may leave these out.
EXTENSIONS = ("fabric", "licence", "stock", "osc_gpu/fleet", "osc_gpu/stock")
# Lines of a module, which takes as many as its noun does.
LONGEST = 700
# A module of such a name is missing a noun.
NOT_A_NAME = {"utils", "util", "common", "helper", "helpers", "manager"}


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Return all modules of both packages by their paths below the checkout."""
    paths = sorted(path for package in (PACKAGE, CLIENT) for path in package.rglob("*.py"))
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in paths}


def _last(node: ast.AST | None) -> str | None:
    """``Slot`` of ``Slot`` and of ``vgpu.Slot``"""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


class ImportsTest(unittest.TestCase):
    def test_core_has_the_standard_library_only(self) -> None:
        allowed = {*sys.stdlib_module_names, "nova_gpu"}
        found = [
            (path, name)
            for path, tree in modules().items()
            if "/core/" in path
            for name in imports(tree)
            if name.partition(".")[0] not in allowed
        ]
        self.assertEqual([], found)

    def test_no_test_imports_another(self) -> None:
        """Their bases lie in fixtures."""
        found = [
            (str(path.relative_to(ROOT)), name)
            for path in sorted((ROOT / "tests/unit").rglob("*.py"))
            for name in imports(ast.parse(path.read_text()))
            if re.match(r"tests\.(unit|functional)\..*\btest_", name)
        ]
        self.assertEqual([], found)

    def test_what_imports_modules_by_their_names(self) -> None:
        """A command's, Nova's in parts, a guest's where its folder is, and those that take long"""
        late = [
            path
            for path, tree in modules().items()
            if any(_last(node) == "import_module" for node in ast.walk(tree))
        ]
        names = "cmd/gpu cmd/status conf/novas core/extensions privsep/__init__"
        expected = [f"nova_gpu/{name}.py" for name in (*names.split(), "virt/delivery/service")]
        self.assertEqual(expected, late)

    def test_privsep_is_imported_when_it_is_used(self) -> None:
        text = (
            "import sys, nova_gpu.privsep as p; before = 'oslo_privsep' in sys.modules;"
            "print(before, callable(p.vgpu.make), 'oslo_privsep' in sys.modules);"
            "print(hasattr(p, 'none'))"
        )
        command = [sys.executable, "-W", "ignore", "-c", text]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        self.assertEqual("False True True\nFalse\n", done.stdout, done.stderr)


class WaysOfDeliveryTest(unittest.TestCase):
    """Which way a device is given, or whether it is a whole card, the ways themselves ask."""

    # What asks all the same. Nothing is to be added here: what varies by the way is the way's to
    # say.
    STILL: ClassVar[dict[str, str]] = {
        "nova_gpu/core/names.py": "the names of providers have the mode in them",
        "nova_gpu/host/nodes.py": "a card and a MIG instance have other nodes",
        "nova_gpu/host/container/guest_processes.py": "and so other processes have them open",
        "nova_gpu/host/nvidia/nvml.py": "the other end of an NVLink, which no guest has",
    }
    OWN = ("nova_gpu/virt/delivery/", "nova_gpu/core/model", "nova_gpu/core/device")

    def test_are_asked_for_in_delivery(self) -> None:
        asking = {
            path
            for path, tree in modules().items()
            if not path.startswith(self.OWN) and any(map(self.asks, ast.walk(tree)))
        }
        self.assertEqual(self.STILL.keys(), asking)

    def asks(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute) and _last(node.value) == "DeliveryMode":
            return node.attr in model.DeliveryMode.__members__
        is_call = isinstance(node, ast.Call) and _last(node.func) == "isinstance"
        return is_call and bool({"Slot", "PciAddress"} & set(map(_last, ast.walk(node.args[1]))))


class BoundariesTest(unittest.TestCase):
    """Any exception is caught here alone, with the reason in the same line.

    Elsewhere a call that may raise anything stands in nova_gpu.core.boundary.crossed.
    """

    FUNCTIONS: ClassVar[list[tuple[str, str]]] = [
        ("nova_gpu/cmd/status.py", "main"),
        ("nova_gpu/core/boundary.py", "crossed"),
        ("nova_gpu/host/child.py", "_communicate"),
        ("nova_gpu/virt/lifecycle/vgpus.py", "start"),
        ("nova_gpu/virt/live_migration/departures.py", "leaving"),
        ("nova_gpu/virt/periodic.py", "contained"),
    ]

    def test_any_exception_is_caught_at_few(self) -> None:
        found = [
            (path, function.name, handler.lineno)
            for path, tree in modules().items()
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef)
            for handler in ast.walk(function)
            if isinstance(handler, ast.ExceptHandler) and self.is_for_any(handler)
        ]
        self.assertEqual(self.FUNCTIONS, [(path, name) for path, name, _ in found])
        for path, _, line in found:
            with self.subTest(path, line=line):
                text = (ROOT / path).read_text().splitlines()[line - 1]
                self.assertRegex(text, r":  # \w.{15,}")

    def is_for_any(self, handler: ast.ExceptHandler) -> bool:
        """Return whether it catches any exception; to undo something and raise it again is none."""
        types = set(map(_last, ast.walk(handler.type))) if handler.type else {"BaseException"}
        swallows = not any(isinstance(node, ast.Raise) for node in ast.walk(handler))
        return bool(types & ({"Exception", "BaseException"} if swallows else {"Exception"}))


class NamespacesTest(unittest.TestCase):
    # setns(2), nsenter(1); the calls that take something from within a process: pidfd_getfd(2),
    # ptrace(2), process_vm_readv(2), and /proc/PID/root and cwd, which lead into its mounts.
    WAYS_IN = re.compile(r"setns|nsenter|umount|pidfd_getfd|ptrace|process_vm_|[}/]/(root|cwd)\b")

    def test_nothing_enters_a_guests_namespaces(self) -> None:
        for line in ("libc.setns(fd, 0)", "['nsenter', '-t']", 'open(f"/proc/{pid}/root/dev")'):
            self.assertTrue(self.WAYS_IN.search(line), line)
        found = [path for path in modules() if self.WAYS_IN.search((ROOT / path).read_text())]
        self.assertEqual([], found)


class ModulesTest(unittest.TestCase):
    def test_length_and_name(self) -> None:
        paths = [pathlib.Path(path) for path in modules()]
        self.assertEqual(set(), NOT_A_NAME & {part for path in paths for part in path.parts})
        self.assertEqual(set(), NOT_A_NAME & {path.stem for path in paths})
        lengths = {path: (ROOT / path).read_text().count("\n") for path in paths}
        self.assertEqual({}, {path: n for path, n in lengths.items() if n > LONGEST})

    def test_none_hides_one_of_the_standard_library(self) -> None:
        """Check all names: a script run by its path has its folder first in ``sys.path``."""
        folders = ("benchmarks", "devstack", "doc", "lab", "nova_gpu", "osc_gpu", "tests", "tools")
        stems = {path.stem: path for name in folders for path in (ROOT / name).rglob("*.py")}
        self.assertEqual(set(), stems.keys() & sys.stdlib_module_names)


class PackagesTest(unittest.TestCase):
    """Packages below core, host and virt: a newcomer guesses from their names where a rule is."""

    def test_each_says_what_belongs_there(self) -> None:
        inits = [tree for path, tree in modules().items() if path.endswith("/__init__.py")]
        self.assertGreater(len(inits), 15)
        for tree in inits:
            if text := ast.get_docstring(tree):
                self.assertRegex(text, r"^\w.{30,}")

    def test_are_installed(self) -> None:
        metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())
        listed = set(metadata["tool"]["setuptools"]["packages"])
        folders = {path.rpartition("/")[0] for path in modules() if path.endswith("/__init__.py")}
        names = {folder.replace("/", ".") for folder in folders - {"nova_gpu/virt_ext"}}
        # A packager may leave an extension out.
        paths = {name: name.replace(".", "/").removeprefix("nova_gpu/") for name in listed}
        away = {name for name, path in paths.items() if path.startswith(_away())}
        self.assertEqual(names | {"nova.virt.gpu"}, listed - away)

    def test_modules_that_the_pages_name(self) -> None:
        pages = ROOT / "doc/source/contributor"
        text = "".join((pages / name).read_text() for name in ("where.rst", "state.rst"))
        parts = "api|cmd|conf|core|fabric|host|licence|osc_gpu|privsep|scheduler|stock|virt"
        names = re.findall(rf"``((?:{parts})(?:/\w+)*)``", text)
        self.assertGreater(len(names), 25)
        known = {path.removesuffix(".py").removesuffix("/__init__") for path in modules()}
        gone = {name for name in names if not {name, f"nova_gpu/{name}"} & known}
        self.assertEqual(set(), {name for name in gone if not name.startswith(_away())})


def _away() -> tuple[str, ...]:
    """Return the folders of the extensions that are not there."""
    return tuple(
        name for name in EXTENSIONS if not ((PACKAGE / name).is_dir() or (ROOT / name).is_dir())
    )
