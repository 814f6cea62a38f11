# SPDX-License-Identifier: Apache-2.0
"""A cell of a table with one line for each thing in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cliff import columns


class Lines(columns.FormattableColumn[list[Any]]):
    """Programs get the things as they are, people a line for each."""

    def __init__(self, things: Iterable[Any], line: Callable[[Any], str] = str) -> None:
        super().__init__(list(things))
        self._line = line

    def human_readable(self) -> str:
        return "\n".join(map(self._line, self._value))

    def machine_readable(self) -> list[Any]:
        return self._value
