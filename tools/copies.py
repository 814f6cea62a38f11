# SPDX-License-Identifier: Apache-2.0
"""Copies of the working tree, in which code may be broken and its tests run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools import environments

# The bounds of one run of tests, in seconds: of each process, and of the clock
PROCESSOR_S, CLOCK_S = 300, 1200
# Lines of unittest's about tests that failed, and about modules that cannot be imported
_FAILED = re.compile(r"^(?:FAIL|ERROR): (\S+) \(([^)]*)\)", re.MULTILINE)
_NO_TEST = "unittest.loader._FailedTest"


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """The result of a run of tests.

    ``status``: the exit status, ``None`` if the run was ended at a bound. ``output``: what it
    printed. ``processor_s``: what it and its children took of the processors.
    """

    status: int | None
    output: str
    processor_s: float

    @property
    def failed(self) -> list[str]:
        """The names of the tests that failed, from what unittest has printed."""
        return [
            match[2] if match[2].endswith(f".{match[1]}") else f"{match[2]}.{match[1]}"
            for match in _FAILED.finditer(self.output)
        ]

    @property
    def is_without_a_test(self) -> bool:
        """Whether the module of a test could not be imported."""
        return _NO_TEST in self.output


@contextlib.contextmanager
def of_tree(root: Path, name: str) -> Iterator[Path]:
    """Yield a copy of the tree at *root*, of links to its files, and remove it at the end.

    What is changed in the copy must be replaced, not written to.
    """
    with _folder(name) as folder:
        for file in _files(root):
            source, target = root / file, folder / file
            if source.is_file() or source.is_symlink():
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(source, target, follow_symlinks=False)
                _link_compiled(source, target)
        yield folder


@contextlib.contextmanager
def _folder(name: str) -> Iterator[Path]:
    """Yield a new folder with links to the environments of the suites, and remove it at the end.

    It is in the same file system as the tree, as links between files have to be.
    """
    below = environments.STATE / "copies"
    below.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=below))
    try:
        state = folder / environments.STATE.name
        state.mkdir()
        for venv in environments.STATE.glob("venv-*"):
            (state / venv.name).symlink_to(venv.resolve())
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _files(root: Path) -> list[str]:
    """Return the files of the tree, those that git does not know yet included."""
    if not (root / ".git").exists():  # it is a copy
        every = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
        skipped = (environments.STATE.name, "__pycache__")
        return [str(path) for path in every if not {*path.parts} & {*skipped}]
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=root, stdout=subprocess.PIPE, text=True, check=True)
    return [*filter(None, files.stdout.split("\0"))]


def _link_compiled(source: Path, target: Path) -> None:
    """Link what Python has compiled of a module: it names the source by its time and size."""
    if source.suffix != ".py":
        return
    for compiled in source.parent.joinpath("__pycache__").glob(f"{source.stem}.*.pyc"):
        folder = target.parent / "__pycache__"
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(OSError):  # it was compiled anew meanwhile
            os.link(compiled, folder / compiled.name)


@contextlib.contextmanager
def of_commit(root: Path, ref: str) -> Iterator[Path]:
    """Yield a copy of what the commit *ref* has, and remove it at the end."""
    with _folder("commit") as folder:
        archive = subprocess.run(
            ["git", "archive", ref], cwd=root, stdout=subprocess.PIPE, check=True
        ).stdout
        subprocess.run(["tar", "--extract", "--directory", folder], input=archive, check=True)
        yield folder


def replace(file: Path, text: str) -> None:
    """Give a file of a copy another text; the original, which it may be a link to, stays."""
    file.unlink()
    file.write_text(text)


def run_tests(
    folder: Path, tests: Sequence[str], *, first: bool, processor_s: int = PROCESSOR_S
) -> Run:
    """Run tests in a copy, in the environment of the suites with the newest Nova.

    :param tests: modules, classes or methods, as ``python -m unittest`` takes them
    """
    variables = {**environments.variables(environments.NEWEST), "PYTHONPATH": str(folder)}
    with tempfile.NamedTemporaryFile("r", errors="replace") as output, _forker() as forker:
        question = {
            "folder": str(folder),
            "arguments": [*(["--failfast"] if first else []), *tests],
            "environ": variables,
            "output": output.name,
            "processor_s": processor_s,
            "clock_s": CLOCK_S,
        }
        assert forker.stdin and forker.stdout
        forker.stdin.write(json.dumps(question) + "\n")
        forker.stdin.flush()
        answer = json.loads(forker.stdout.readline())
        return Run(answer["status"], output.read(), answer["processor_s"])


# Nova 2026.2 decides between threads and eventlet on its first import.
_FORKERS = {"PYTHONPATH": "", "OS_NOVA_DISABLE_EVENTLET_PATCHING": "1"}
_forkers: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()


@contextlib.contextmanager
def _forker() -> Iterator[subprocess.Popen[str]]:
    """Yield a process of ``tools.forked_tests`` that has nothing to do; it ends with this one."""
    try:
        forker = _forkers.get_nowait()
    except queue.Empty:
        python = environments.path(environments.NEWEST) / "bin/python"
        # By its path: as a module it would bring this tree's package along.
        script = Path(__file__).with_name("forked_tests.py")
        forker = subprocess.Popen(
            [str(python), "-W", "ignore", str(script)],
            env={**environments.variables(environments.NEWEST), **_FORKERS},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    yield forker
    _forkers.put(forker)
