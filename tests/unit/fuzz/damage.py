# SPDX-License-Identifier: Apache-2.0
"""Files that are not what a reader expects: really there, for the real readers."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import pathlib
import shutil
from collections.abc import Iterable, Iterator, Sequence

from hypothesis import strategies as st

# More than any process here may have of memory
_HUGE = 1 << 36
_NOBODY = 65534


class Kind(enum.Enum):
    MISSING = "missing"
    EMPTY = "empty"
    CONTENT = "other content"
    HUGE = "huge"
    FOLDER = "a folder"
    FIFO = "a pipe that nobody writes to"
    DANGLING = "a link to nothing"
    LOOP = "a link to itself"
    LINK = "a link to somewhere"
    UNREADABLE = "of mode 000"


@dataclasses.dataclass(frozen=True)
class Harm:
    kind: Kind
    content: bytes = b""


_NUMBERS = st.sampled_from(
    [
        "0x10de",
        "0x030000",
        "-1",
        "-0x1",
        "0x",
        "0x1_0",
        "0x12345",
        "99999",
        "1e3",
        "\u0663",
        "0x1 2",
    ]
) | st.integers().map(str)
_CONTENT = st.binary(max_size=64) | _NUMBERS.map(str.encode) | st.just(b"9" * 5000)
HARMS = st.one_of(
    st.sampled_from(list(Kind)).map(Harm),
    _CONTENT.map(lambda content: Harm(Kind.CONTENT, content)),
    st.sampled_from([b"../../x", b"-1", b"\xff", b"7", b"nvidia", b"vfio-pci"]).map(
        lambda target: Harm(Kind.LINK, target)
    ),
)

# Each with a number that chooses its place
SOME = st.lists(st.tuples(st.integers(0, 10**6), HARMS), min_size=1, max_size=3)


@contextlib.contextmanager
def all_done(paths: Sequence[pathlib.Path], harms: Iterable[tuple[int, Harm]]) -> Iterator[None]:
    """Each of these at one of *paths*, as far as an earlier one leaves its place there, for who
    cannot read all"""
    with contextlib.ExitStack() as stack:
        unreadable = False
        for number, harm in harms:
            path = paths[number % len(paths)]
            if path.parent.is_dir() and not os.path.lexists(f"{path}.kept"):
                stack.enter_context(done(path, harm))
                unreadable |= harm.kind is Kind.UNREADABLE
        if unreadable:
            stack.enter_context(another_user())
        yield


@contextlib.contextmanager
def done(path: pathlib.Path, harm: Harm) -> Iterator[None]:
    """*path* is as *harm* says; afterwards it is as before."""
    kept = path.with_name(f"{path.name}.kept")
    there = os.path.lexists(path)
    if there:
        path.rename(kept)
    try:
        _do(path, harm)
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if there:
            kept.rename(path)


def _do(path: pathlib.Path, harm: Harm) -> None:
    match harm.kind:
        case Kind.MISSING:
            pass
        case Kind.EMPTY | Kind.CONTENT:
            path.write_bytes(harm.content)
        case Kind.HUGE:
            path.touch()
            os.truncate(path, _HUGE)
        case Kind.FOLDER:
            path.mkdir()
        case Kind.FIFO:
            os.mkfifo(path)
        case Kind.DANGLING:
            path.symlink_to("nowhere")
        case Kind.LOOP:
            path.symlink_to(path.name)
        case Kind.LINK:
            path.symlink_to(os.fsdecode(harm.content) or "x")
        case Kind.UNREADABLE:
            path.touch()
            path.chmod(0)


@contextlib.contextmanager
def another_user() -> Iterator[None]:
    """root reads everything, whatever its mode."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
