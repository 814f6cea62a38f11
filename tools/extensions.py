# SPDX-License-Identifier: Apache-2.0
"""``python -m tools.extensions``: checks that nova-gpu works after extensions are deleted.

An extension is a capability that most clouds do without. Its folder, the tests that use it and its
lines of pyproject.toml are deleted in a copy of the checkout: those of all extensions, for the
linters and the unit tests that the deletion may affect; then those of each one, for the entry
points of the others.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
# To save time: mypy can use the checkout's cache, because few files differ.
VARIABLES = {"MYPY_CACHE_DIR": str(ROOT / ".mypy_cache")}


@dataclasses.dataclass(frozen=True, slots=True)
class Extension:
    """An extension: its folder, and the names of its packages."""

    folder: str
    packages: tuple[str, ...]


def extensions() -> list[Extension]:
    """Return all extensions of the checkout."""
    folders = sorted(path for path in ROOT.glob("extensions/*") if path.is_dir())
    return [
        Extension(
            str(folder.relative_to(ROOT)),
            tuple(path.name for path in sorted(folder.glob("*_gpu_*"))),
        )
        for folder in folders
    ]


# mypy finds each import of an extension. Left out are the tests of layers that load none by name,
# of tools and of fixtures, and properties and benchmarks, which the checkout's unit suite has; and
# the documentation's matrix of all tests and its sample of all options.
_UNAFFECTED = (
    r"unit\.(benchmarks|cloud|crash|fixtures|fuzz|host|lab|privsep|tools)\."
    r"|unit\.core\.(?!test_extensions\.)|unit\.test_(faults|operations|samples)\."
)
_STESTR = ("stestr", "--test-path", "tests/unit", "--top-dir", ".", "run")
COMMANDS = (
    ("ruff", "check", "."),
    ("mypy",),
    (*_STESTR, "--exclude-regex", _UNAFFECTED),
)
# For the deletion of one: a contract of import-linter says that none imports another.
_PACKAGING = "tests.unit.test_packaging"
_OF_EACH = (
    (
        "python",
        "-m",
        "unittest",
        "-q",
        f"{_PACKAGING}.TestEntryPoints",
        f"{_PACKAGING}.PackagesTest",
    ),
)


def main() -> int:
    every = extensions()
    for deleted, commands in [(every, COMMANDS), *(([extension], _OF_EACH) for extension in every)]:
        names = " and ".join(extension.folder for extension in deleted)
        if failure := _failure(deleted, commands):
            print(f"{failure[-16000:]}\nfailed without {names}")
            return 1
        print(f"without {names}: {', '.join(argv[0] for argv in commands)} passed", flush=True)
    return 0


def _failure(deleted: Collection[Extension], commands: Sequence[Sequence[str]]) -> str:
    """Run *commands* in a copy without the extensions *deleted*; return the output of a failure."""
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder, "tree")
        ignored = shutil.ignore_patterns(
            ".git", ".tools", ".stestr", ".*_cache", "*.egg-info", "__pycache__", "build"
        )
        shutil.copytree(ROOT, tree, ignore=ignored)
        for extension in deleted:
            _delete(tree, extension)
        for argv in commands:
            done = subprocess.run(
                argv,
                cwd=tree,
                env={**os.environ, **VARIABLES, "PYTHONPATH": str(tree)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if done.returncode:
                return f"{done.stdout}\n{' '.join(argv)} failed"
    return ""


def _delete(tree: pathlib.Path, extension: Extension) -> None:
    shutil.rmtree(tree / extension.folder)
    for path in (*tree.glob("tests/**/*.py"), *tree.glob("extensions/*/tests/**/*.py")):
        if any(package in path.read_text() for package in extension.packages):
            path.unlink()
    project = tree / "pyproject.toml"
    lines = project.read_text().splitlines(keepends=True)
    project.write_text(
        "".join(
            line for line in lines if not any(package in line for package in extension.packages)
        )
    )


if __name__ == "__main__":
    sys.exit(main())
