# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.extensions``: checks that nova-gpu works after extensions are deleted.

An extension is a capability in one folder that most clouds do without. The folders, tests and entry
points of all extensions are deleted in a copy of the checkout, and the linters and those unit tests
run there that the deletion may affect. That none needs another one, a test of the layers holds.
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
# To save time: mypy can use the checkout's cache, because few files differ.
VARIABLES = {"MYPY_CACHE_DIR": str(ROOT / ".mypy_cache")}


@dataclasses.dataclass(frozen=True, slots=True)
class Extension:
    """An extension: the code in ``folder``, and ``tests``, the files and folders of its tests."""

    folder: str
    tests: tuple[str, ...]


EXTENSIONS = (
    # test_operations wants functional tests that also use fleet's commands.
    Extension("osc_gpu/fleet", ("tests/unit/osc_gpu/fleet", "tests/unit/test_operations.py")),
    Extension("osc_gpu/stock", ("tests/unit/osc_gpu/stock",)),
    Extension(
        "nova_gpu/fabric",
        (
            *("tests/unit/fabric", "tests/fixtures/nvfm.py", "tests/fixtures/nvfm.c"),
            *("tests/functional/test_fabric.py", "tests/vfio/test_board.py"),
        ),
    ),
    Extension("nova_gpu/licence", ("tests/unit/licence",)),
    Extension(
        "nova_gpu/stock",
        (
            *("tests/unit/stock", "tests/functional/stock.py"),
            *("tests/takeover", "tests/cloud/takeover.py"),
        ),
    ),
)


# mypy finds each import of an extension. Left out are the tests of layers that load none by name,
# of tools and of fixtures, and properties and benchmarks, which the checkout's unit suite has.
_UNAFFECTED = (
    r"unit\.(benchmarks|cloud|crash|fixtures|fuzz|host|lab|privsep|tools)\."
    r"|unit\.core\.(?!test_extensions\.)|unit\.test_faults\."
)
_STESTR = ("stestr", "--test-path", "tests/unit", "--top-dir", ".", "run")
COMMANDS = (
    ("ruff", "check", "."),
    ("mypy",),
    (*_STESTR, "--exclude-regex", _UNAFFECTED),
)


def main() -> int:
    names = " and ".join(extension.folder for extension in EXTENSIONS)
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder, "tree")
        ignored = shutil.ignore_patterns(
            ".git", ".tools", ".stestr", ".*_cache", "*.egg-info", "__pycache__", "build"
        )
        shutil.copytree(ROOT, tree, ignore=ignored)
        for extension in EXTENSIONS:
            _delete(tree, extension)
        for argv in COMMANDS:
            done = subprocess.run(
                argv,
                cwd=tree,
                env={**os.environ, **VARIABLES, "PYTHONPATH": str(tree)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if done.returncode:
                print(f"{done.stdout[-16000:]}\nwithout {names}: {argv} failed")
                return 1
    print(f"without {names}: {', '.join(argv[0] for argv in COMMANDS)} passed")
    return 0


def _delete(tree: pathlib.Path, extension: Extension) -> None:
    package = extension.folder.replace("/", ".")
    shutil.rmtree(tree / extension.folder)
    for name in extension.tests:
        path = tree / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for suite in ("functional", "lxc"):
        for path in (tree / "tests" / suite).glob("test_*.py"):
            if package in path.read_text():
                path.unlink()
    project = tree / "pyproject.toml"
    lines = project.read_text().splitlines(keepends=True)
    project.write_text("".join(line for line in lines if package not in line))


if __name__ == "__main__":
    sys.exit(main())
