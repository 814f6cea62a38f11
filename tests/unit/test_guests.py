# SPDX-License-Identifier: Apache-2.0
"""Without a guest's folder, and its tests, all else works: tried in a copy."""

from __future__ import annotations

import ast
import os
import pathlib
import shutil
import subprocess
import sys
import unittest
from collections.abc import Collection, Iterable, Iterator

import fixtures
from oslotest import base

ROOT = pathlib.Path(__file__).parents[2]
# What is run, and what takes part in a guest's absence at home
FOLDERS = ("benchmarks", "doc", "etc", "lab", "nova_gpu", "osc_gpu", "tests", "tools")
FILES = ("pyproject.toml", "setup.cfg", "README.rst", "CONTRIBUTING.rst")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


def without(folder: str, tests: Collection[str], into: pathlib.Path) -> None:
    """Copy the project without a guest and its tests."""
    for name in FOLDERS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, into / name, ignore=_LEFT_OUT, symlinks=True)
    for name in FILES:
        shutil.copy(ROOT / name, into / name)
    for name in (folder, *tests):
        path = into / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def missing(root: pathlib.Path) -> Iterator[str]:
    """Yield the imports of modules of this project that are not there."""
    for module in sorted(root.rglob("*.py")):
        for name in _imports(ast.parse(module.read_text())):
            if name.split(".")[0] in FOLDERS and not _is_there(root, name):
                yield f"{module.relative_to(root)}: {name}"


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_there(root: pathlib.Path, name: str) -> bool:
    """Return whether a name is that of a module, or of something in one."""
    path = root / name.replace(".", "/")
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    return path.parent.with_suffix(".py").is_file() or (path.parent / "__init__.py").is_file()


def run(root: pathlib.Path, modules: Iterable[str]) -> str | None:
    """Return what test modules of the copy print where one fails."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-m", "testtools.run", *modules],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
    )
    return None if done.returncode == 0 else done.stdout + done.stderr


class GuestTestCase(base.BaseTestCase):
    def check(self, folder: str, tests: Collection[str], *modules: str) -> None:
        """Check that the rest imports nothing of a guest, and that some of its tests pass.

        :param tests: the files and folders that try the guest
        :param modules: test modules of what asks the guest
        """
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        without(folder, tests, root)
        self.assertEqual([], list(missing(root)))
        self.assertIsNone(run(root, ("tests.unit.test_layering", *modules)))


class FabricTest(GuestTestCase):
    def test_boards_with_nvswitches(self) -> None:
        self.check(
            "nova_gpu/fabric",
            (
                "tests/unit/fabric",
                *("tests/fixtures/nvfm.py", "tests/fixtures/nvfm.c"),
                "tests/functional/boards.py",
                *("tests/functional/test_fabric.py", "tests/functional/test_fabric_vgpus.py"),
                "tests/vfio/test_board.py",
            ),
            *("tests.unit.virt.test_sets", "tests.unit.virt.delivery.test_ways"),
            *("tests.unit.virt.inventory.test_discovery_parts", "tests.unit.cmd.test_topology"),
            "tests.unit.scheduler.test_filters",
        )


class MissingTest(unittest.TestCase):
    def test_what_is_not_there(self) -> None:
        with fixtures.TempDir() as folder:
            root = pathlib.Path(folder.path)
            (root / "nova_gpu").mkdir()
            (root / "nova_gpu/__init__.py").touch()
            (root / "nova_gpu/one.py").write_text(
                "import os\nfrom nova_gpu import one\nfrom nova_gpu.gone.door import A\n"
            )
            self.assertEqual(
                ["nova_gpu/one.py: nova_gpu.gone.door", "nova_gpu/one.py: nova_gpu.gone.door.A"],
                list(missing(root)),
            )
