# SPDX-License-Identifier: Apache-2.0
"""Commands whose requests that write are counted: one of them is the last, or others come between.

A command has no state but what it wrote: it ends with its process, and another one begins anew.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import requests
from requests import adapters

from tests.functional import sdk


class When(enum.StrEnum):
    AFTER = "killed before its answer"
    MEANWHILE = "another run comes before it"


class Killed(BaseException):
    """The end of a command's process"""


class Writes(adapters.BaseAdapter):
    """The way to the services of one command, which *act* interrupts at one of its writes.

    Once that has raised, the command asks for nothing more, as a process that is gone.
    """

    def __init__(self, number: int, when: When, act: Callable[[], None]) -> None:
        super().__init__()
        self.made: list[str] = []
        self._number, self._when, self._act = number, when, act
        self._is_over = False

    def over(self, patient: adapters.BaseAdapter) -> adapters.BaseAdapter:
        adapter = adapters.BaseAdapter()
        adapter.send = lambda *args, **kwargs: self._send(patient, *args, **kwargs)
        adapter.close = patient.close
        return adapter

    def _send(
        self,
        patient: adapters.BaseAdapter,
        request: requests.PreparedRequest,
        *args: Any,
        **kwargs: Any,
    ) -> requests.Response:
        if self._is_over:
            raise Killed
        if request.method in ("GET", "HEAD"):
            return patient.send(request, *args, **kwargs)
        self.made.append(f"{request.method} {request.path_url}")
        here = len(self.made) == self._number
        if here and self._when is not When.AFTER:
            self._interrupt()
        answer = patient.send(request, *args, **kwargs)
        if here and self._when is When.AFTER:
            self._interrupt()
        return answer

    def _interrupt(self) -> None:
        try:
            self._act()
        except Killed:
            self._is_over = True
            raise


def kill(*args: Any, **kwargs: Any) -> None:
    raise Killed


@contextlib.contextmanager
def interrupted(number: int, when: When, act: Callable[[], None]) -> Iterator[Writes]:
    """The next command is, at its write of this number; those that *act* runs are not."""
    writes, connect = Writes(number, when, act), sdk.connect
    mounted = False

    def connected(*args: Any, **kwargs: Any) -> Any:
        nonlocal mounted
        made = connect(*args, **kwargs)
        if not mounted:
            mounted = True
            sending = made.session.session
            for prefix, adapter in list(sending.adapters.items()):
                sending.mount(prefix, writes.over(adapter))
        return made

    with mock.patch.object(sdk, "connect", connected):
        yield writes
