# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.extensions``: checks that nova-gpu works after an extension is deleted.

An extension is a capability in one folder that most clouds do without. For each, its folder, tests
and entry points are deleted in a copy of the checkout, where linters and tests then run.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True, slots=True)
class Extension:
    """An extension: the code in ``folder``, and ``tests``, the files and folders of its tests.

    ``neighbours`` are the packages that load the extension, which mypy checks without it;
    ``checks`` are the modules and packages of tests that run without it.
    """

    folder: str
    tests: tuple[str, ...]
    neighbours: tuple[str, ...]
    checks: tuple[str, ...]

    @property
    def package(self) -> str:
        return self.folder.replace("/", ".")


EXTENSIONS = (
    Extension(
        "osc_gpu/fleet",
        ("tests/unit/osc_gpu/fleet",),
        ("osc_gpu", "nova_gpu/core", "nova_gpu/api"),
        ("tests.unit.osc_gpu", "tests.unit.core.flavor", "tests.unit.fuzz.test_tenants"),
    ),
    Extension(
        "nova_gpu/fabric",
        (
            *("tests/unit/fabric", "tests/fixtures/nvfm.py", "tests/fixtures/nvfm.c"),
            *("tests/functional/test_fabric.py", "tests/functional/test_fabric_vgpus.py"),
            *("tests/functional/boards.py", "tests/vfio/test_board.py"),
        ),
        ("nova_gpu",),
        (
            *("tests.unit.virt.test_sets", "tests.unit.virt.delivery.test_ways"),
            *("tests.unit.virt.inventory.test_discovery_parts", "tests.unit.cmd.test_topology"),
            "tests.unit.scheduler.test_filters",
        ),
    ),
)
_LAYERS = ("tests.unit.test_layering", "tests.unit.test_packaging", "tests.unit.test_requirements")


def main() -> int:
    return max(map(_check, EXTENSIONS))


def _check(extension: Extension) -> int:
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder, "tree")
        _copy(tree)
        _delete(tree, extension)
        environment = {**os.environ, "PYTHONPATH": str(tree)}
        for argv in _commands(tree, extension):
            done = subprocess.run(argv, cwd=tree, env=environment, capture_output=True, text=True)
            if done.returncode:
                print(done.stdout[-8000:], done.stderr[-8000:], sep="\n")
                print(
                    f"without {extension.folder}: FAILED, {' '.join(argv)}: exit {done.returncode}"
                )
                return 1
    print(f"without {extension.folder}: all checks passed")
    return 0


def _copy(tree: pathlib.Path) -> None:
    """Copy the checkout into *tree*, without files that git ignores."""
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)


def _delete(tree: pathlib.Path, extension: Extension) -> None:
    shutil.rmtree(tree / extension.folder)
    for name in extension.tests:
        path = tree / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for suite in ("functional", "lxc"):
        for path in (tree / "tests" / suite).glob("test_*.py"):
            if extension.package in path.read_text():
                path.unlink()
    project = tree / "pyproject.toml"
    lines = project.read_text().splitlines(keepends=True)
    project.write_text("".join(line for line in lines if extension.package not in line))


def _commands(tree: pathlib.Path, extension: Extension) -> Iterator[Sequence[str]]:
    yield "ruff", "check", "."
    yield "mypy", *extension.neighbours
    yield sys.executable, "-m", "testtools.run", *_LAYERS, *_modules(tree, extension.checks)


def _modules(tree: pathlib.Path, names: Sequence[str]) -> Iterator[str]:
    """Yield the names of the test modules among *names*, and of those in packages among them."""
    for name in names:
        folder = tree / name.replace(".", "/")
        for path in sorted(folder.rglob("test_*.py")):
            yield ".".join(path.relative_to(tree).with_suffix("").parts)
        if not folder.is_dir():
            yield name


if __name__ == "__main__":
    sys.exit(main())
