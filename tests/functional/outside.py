# SPDX-License-Identifier: Apache-2.0
"""All that a command does to the outside, which is interrupted at one place, by its number.

The outside are Nova's databases, which the conductor writes, Placement, files, and libvirt. A place
is before a statement that writes, before a commit and after it; before a request to Placement that
writes and after it; before a file is written or removed; and before a call of libvirt that changes
something and after it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import engine, event, orm

_WRITES = ("INSERT", "UPDATE", "DELETE")
_FILES = ("os.remove", "os.rename", "os.truncate")


class Killed(BaseException):
    """The end of a command's process: a transaction that is open is rolled back."""


def kill() -> None:
    raise Killed


class Outside:
    """The places that the command of this thread passes, and what is done at one of them.

    What *act* does itself is not of the command. Once it has raised, the command reaches nothing
    any more, as a process that is gone. An *act* that is not :func:`kill` waits for the end of a
    transaction, because the databases of the tests have one writer.

    :param number: of the place, from 1, ``None`` for none; ``passed`` has them by name
    """

    def __init__(self, number: int | None, act: Callable[[], object] = kill) -> None:
        self.passed: list[str] = []
        self.done_at: str | None = None
        self._number, self._act = number, act
        self._thread = threading.get_ident()
        self._is_inside = True
        self._is_over = False
        self._has_written = False

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """While this lasts, the command runs in this thread."""
        listeners: list[tuple[Any, str, Callable[..., None]]] = [
            (engine.Engine, "before_cursor_execute", self._execute),
            (engine.Engine, "commit", self._commit),
            (orm.Session, "after_commit", self._committed),
        ]
        for listener in listeners:
            event.listen(*listener)
        _watch(self)
        try:
            yield
        except Killed:
            pass
        finally:
            _watch(None)
            for listener in listeners:
                event.remove(*listener)

    def over(self, client: Any) -> Any:
        """Return Nova's report *client*, whose requests that write are places."""
        for verb in ("put", "post", "delete"):
            setattr(client, verb, self._request(verb, getattr(client, verb)))
        return client

    def _request(self, verb: str, send: Callable[..., Any]) -> Callable[..., Any]:
        def request(url: str, *args: Any, **kwargs: Any) -> Any:
            what = f"{verb.upper()} {url.partition('/')[2].partition('/')[0]}"
            return self.around(what, send)(url, *args, **kwargs)

        return request

    def around(self, what: str, do: Callable[..., Any]) -> Callable[..., Any]:
        """Return *do*, a call of another process that writes, with a place before it and after."""

        def called(*args: Any, **kwargs: Any) -> Any:
            if not self._is_mine():
                return do(*args, **kwargs)
            self._reach(f"before {what}")
            self._is_inside = False
            try:
                answer = do(*args, **kwargs)
            finally:
                self._is_inside = True
            self._reach(f"after {what}")
            return answer

        return called

    def _execute(self, connection: Any, cursor: Any, statement: str, *args: Any) -> None:
        if self._is_mine() and statement.startswith(_WRITES):
            table = statement.replace("INTO ", "").replace("FROM ", "").split()[1]
            self._reach(f"before {statement.split()[0]} {table}", is_open=True)
            self._has_written = True

    def _commit(self, connection: Any) -> None:
        if self._is_mine() and self._has_written:
            self._reach("before COMMIT", is_open=True)

    def _committed(self, session: Any) -> None:
        if self._is_mine() and self._has_written:
            self._has_written = False
            self._reach("after COMMIT")

    def file(self, what: str, path: object) -> None:
        if self._is_mine():
            self._reach(f"before {what} {os.path.basename(str(path))}")

    def _is_mine(self) -> bool:
        return self._is_inside and threading.get_ident() == self._thread

    def _reach(self, place: str, *, is_open: bool = False) -> None:
        if self._is_over:
            raise Killed
        self.passed.append(place)
        waits = is_open and self._act is not kill
        if self._number is None or self.done_at or waits or len(self.passed) < self._number:
            return
        self.done_at = place
        self._is_inside = False
        try:
            self._act()
        except Killed:
            self._is_over = True
            raise
        finally:
            self._is_inside = True


_watched: Outside | None = None
_is_hooked = False


def _watch(outside: Outside | None) -> None:
    """Let *outside* see the files that this process writes and removes; ``None``: nobody."""
    global _watched, _is_hooked
    _watched = outside
    if not _is_hooked:
        sys.addaudithook(_audit)
        _is_hooked = True


def _audit(name: str, arguments: tuple[Any, ...]) -> None:
    if _watched is None:
        return
    writes = name == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE
    if writes or name in _FILES:
        _watched.file(name, arguments[0])
