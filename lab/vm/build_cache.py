# SPDX-License-Identifier: Apache-2.0
"""The folders of built files for a VM, and the check whether they must be built again."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import pathlib
import shutil
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
STATE = ROOT / ".tools" / "vm"
INSIDE = pathlib.Path(__file__).with_name("inside")


def digest(*parts: object) -> str:
    """Return a short name derived from *parts*, of which a path stands for its content."""
    checksum = hashlib.sha256()
    for part in parts:
        content = part.read_bytes() if isinstance(part, pathlib.Path) else repr(part).encode()
        checksum.update(hashlib.sha256(content).digest())
    return checksum.hexdigest()[:16]


def made(
    state: pathlib.Path, kind: str, key: str, make: Callable[[pathlib.Path], None]
) -> pathlib.Path:
    """Return the folder ``KIND-KEY`` below *state*; if it does not exist, let *make* fill it.

    A folder with another key is no longer used and is removed, except while a VM may run from it.
    """
    folder = state / f"{kind}-{key}"
    with _locked(state / f"{kind}.lock"):
        if not folder.exists():
            unfinished = state / f"{kind}.new"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            make(unfinished)
            unfinished.rename(folder)
    return folder


def prune(state: pathlib.Path, names: set[pathlib.Path]) -> None:
    """Remove earlier folders of the same kinds as *names*."""
    for folder in names:
        kind = folder.name.rpartition("-")[0]
        for other in state.glob(f"{kind}-*"):
            if other not in names:
                shutil.rmtree(other)


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
