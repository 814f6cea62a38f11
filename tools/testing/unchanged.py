# SPDX-License-Identifier: Apache-2.0
"""Suites that passed here, on the very files they read: a plain ``tools/test`` leaves them out.

Each file counts that git knows or would add, as it lies there, but those that the suite has in
:data:`APART`; and which Python and kernel there are. What else a machine has, packages for one,
changes unseen: after a week all run, and with ``--no-skip`` at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from tools.testing.environment import ROOT, STATE
from tools.testing.session import Result
from tools.testing.suites import Suite

FILE = STATE / "passed.json"
LASTS_S = 7 * 24 * 3600.0

_PAGES = ("doc", "releasenotes", "*.rst", "LICENSE", ".github")
_AROUND = (
    *("benchmarks", "devstack", "tempest-plugin", ".ci", ".pre-commit-config.yaml"),
    *("tests/unit", "tests/functional/test_*", "tests/bars", "tests/gpu"),
    *("tests/recorded", "tests/shapes"),
    *("tests/quick.txt", "tests/allowed-skips.txt"),
    *("tools/bare", "tools/bareroot", "tools/coverage.py", "tools/fuzz.py", "tools/quickest.py"),
    *("tools/reached.py", "tools/wheels.py", "tools/crashtest"),
)
_VMS = ("tests/vfio", "tests/vgpu", "tests/moves", "tools/vfiolab")
_CLIENT = ("nova_gpu/osc",)
_COMMANDS = ("nova_gpu/cmd",)
# What a suite does not read: folders, files and patterns. Whatever is not here counts, so that a
# new folder does. Who is not here reads nearly all, or takes less than a minute, and always runs.
APART: Mapping[str, tuple[str, ...]] = {
    "nova": (
        *(*_PAGES, *_AROUND, *_CLIENT, *_COMMANDS, "nova_gpu/scheduler", "etc", "tests"),
        *("tools/novalab", "tools/vfiolab"),
    ),
    "lxc": (*_PAGES, *_AROUND, *_COMMANDS, *_VMS, "etc", "tests/crash", "tools/novatests"),
    "crash": (
        *(*_PAGES, *_AROUND, *_CLIENT, *_COMMANDS, *_VMS, "etc", "tests/lxc/test_*"),
        "tools/novatests",
    ),
    "guide": (*_PAGES, *_AROUND, *_VMS, "tests/crash", "tests/lxc", "tools/novatests"),
    "vfio": (
        *(*_PAGES, *_AROUND, *_CLIENT, "etc", "tests/crash", "tests/lxc/test_*"),
        "tools/novatests",
    ),
    "moves": (
        *(*_PAGES, *_AROUND, *_CLIENT, "etc", "tests/crash", "tests/lxc/test_*", "tests/vgpu"),
        *("tests/vfio/test_*", "tools/novatests"),
    ),
}
# What it does read of that: the pages it tries, and those it compares with what commands print.
READ: Mapping[str, tuple[str, ...]] = {
    "guide": (
        *("doc/source/install/first-boot.rst", "doc/source/reference/examples.rst"),
        *("doc/source/admin/moving.rst", "README.rst"),
    ),
    "vfio": ("doc/source/admin/host-check",),
}


@dataclasses.dataclass(frozen=True)
class Pass:
    """That a suite passed here, when (seconds of the epoch), and on what (:func:`digests`)."""

    digest: str
    at: float

    def __str__(self) -> str:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.at))
        return f"passed here on these files ({when}); --all runs it"


def digests(selected: Sequence[Suite], root: Path = ROOT) -> Mapping[str, str]:
    """What each suite reads, by its name: of those in :data:`APART`; of none where git does
    not say which files there are."""
    names = [suite.name for suite in selected if suite.name in APART]
    contents = _contents(root) if names else {}
    return {name: _digest(name, contents) for name in names if contents}


def is_apart(suite: str, name: str) -> bool:
    """Whether that suite does not read the file *name*, a path from the root."""
    return _is_in(name, APART[suite]) and not _is_in(name, READ.get(suite, ()))


def _is_in(name: str, places: Sequence[str]) -> bool:
    return any(fnmatchcase(name, each) or name.startswith(f"{each}/") for each in places)


def passes(found: Mapping[str, str], path: Path = FILE) -> Mapping[str, Pass]:
    """Those of the suites *found*, by their names, that passed here on what they read now."""
    now = time.time()
    return {
        name: last
        for name, last in _read(path).items()
        if last.digest == found.get(name) and 0 <= now - last.at < LASTS_S
    }


def keep(
    results: Sequence[Result],
    before: Mapping[str, str],
    after: Mapping[str, str],
    path: Path = FILE,
) -> None:
    """Which suites passed as a whole, each test at its first try, while nothing changed of what
    they read. Of the others nothing is known any more."""
    known = dict(_read(path))
    for result in results:
        name, did = result.suite.name, result.outcome
        known.pop(name, None)
        whole = did.passed and not (did.failures or did.skips or did.unsteady)
        if whole and name in before and before[name] == after.get(name):
            known[name] = Pass(before[name], time.time())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({name: dataclasses.asdict(each) for name, each in known.items()}))


def _contents(root: Path) -> Mapping[str, str]:
    """A digest of each file, by its path from *root*; nothing where there is no git."""
    argv = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    try:
        listed = subprocess.run(argv, cwd=root, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    found = {}
    for name in set(os.fsdecode(listed).split("\0")) - {""}:
        # What git still has and the folder no more is not read either.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found[name] = _of_file(root / name)
    return found


def _of_file(path: Path) -> str:
    if path.is_symlink():
        return f"link {os.readlink(path)}"
    if path.is_dir():
        return "folder"  # a repository of its own
    runs = os.access(path, os.X_OK)
    return f"{runs:d} {hashlib.sha256(path.read_bytes()).hexdigest()}"


def _digest(suite: str, contents: Mapping[str, str]) -> str:
    digest = hashlib.sha256(f"{sys.version}\0{os.uname().release}\0".encode())
    for name, content in sorted(contents.items()):
        if not is_apart(suite, name):
            digest.update(f"{name}\0{content}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _read(path: Path) -> Mapping[str, Pass]:
    """Nothing where there is no file, or not one of these: then it is written anew."""
    with contextlib.suppress(FileNotFoundError, ValueError, AttributeError, TypeError, KeyError):
        found = json.loads(path.read_text())
        return {
            str(name): Pass(str(each["digest"]), float(each["at"])) for name, each in found.items()
        }
    return {}
