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

ROOT = pathlib.Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True, slots=True)
class Extension:
    """An extension: the code in ``folder``, and ``tests``, the files and folders of its tests."""

    folder: str
    tests: tuple[str, ...]


EXTENSIONS = (
    Extension("osc_gpu/fleet", ("tests/unit/osc_gpu/fleet",)),
    Extension(
        "nova_gpu/fabric",
        (
            *("tests/unit/fabric", "tests/fixtures/nvfm.py", "tests/fixtures/nvfm.c"),
            *("tests/functional/test_fabric.py", "tests/functional/test_fabric_vgpus.py"),
            *("tests/functional/boards.py", "tests/vfio/test_board.py"),
        ),
    ),
)


def main() -> int:
    return max(map(_check, EXTENSIONS))


def _check(extension: Extension) -> int:
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder, "tree")
        ignored = shutil.ignore_patterns(
            ".git", ".tools", ".stestr", ".*_cache", "*.egg-info", "__pycache__", "build", "shared"
        )
        shutil.copytree(ROOT, tree, ignore=ignored)
        _delete(tree, extension)
        stestr = ("stestr", "--test-path", "tests/unit", "--top-dir", ".", "run")
        for argv in (("ruff", "check", "."), ("mypy",), stestr):
            done = subprocess.run(
                argv,
                cwd=tree,
                env={**os.environ, "PYTHONPATH": str(tree)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if done.returncode:
                print(f"{done.stdout[-16000:]}\nwithout {extension.folder}: {argv} failed")
                return 1
    print(f"without {extension.folder}: all checks passed")
    return 0


def _delete(tree: pathlib.Path, extension: Extension) -> None:
    package = extension.folder.replace("/", ".")
    shutil.rmtree(tree / extension.folder)
    for name in extension.tests:
        path = tree / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for suite in ("functional", "lxc"):
        for path in (tree / "tests" / suite).glob("test_*.py"):
            if package in path.read_text():
                path.unlink()
    project = tree / "pyproject.toml"
    lines = project.read_text().splitlines(keepends=True)
    project.write_text("".join(line for line in lines if package not in line))


if __name__ == "__main__":
    sys.exit(main())
