# SPDX-License-Identifier: Apache-2.0
"""Two hosts, each in a cell of its own."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import fixtures
from nova import context as nova_context

CELLS = {"host1": "cell1", "host2": "cell2"}


def of_host(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return *method*, whose first argument is a host, as what a service of its cell does."""

    @functools.wraps(method)
    def called(case: Any, host: str = "host1", *args: Any, **kwargs: Any) -> Any:
        with case.in_cell_of(host):
            return method(case, host, *args, **kwargs)

    return called


class TwoCells:
    """What is done with a host is done as a service of its cell."""

    NUMBER_OF_CELLS = 2

    @contextlib.contextmanager
    def in_cell_of(self: Any, host: str) -> Iterator[None]:
        """As a service of that cell, of which it has the database and no other"""
        mapping, untargeted = self.cell_mappings[CELLS[host]], nova_context.get_admin_context

        def get_admin_context(*args: Any, **kwargs: Any) -> nova_context.RequestContext:
            context = untargeted(*args, **kwargs)
            nova_context.set_target_cell(context, mapping)
            return context

        before, self.context = self.context, get_admin_context()
        with fixtures.MonkeyPatch("nova.context.get_admin_context", get_admin_context):
            try:
                yield
            finally:
                self.context = before

    def start_host(self: Any, name: str = "host1", *args: Any, **kwargs: Any) -> None:
        with self.in_cell_of(name):
            super().start_host(name, *args, cell_name=CELLS[name], **kwargs)  # type: ignore[misc]
        self.assertEqual(CELLS[name], self.host_mappings[name].cell_mapping.name)

    def one_period(self: Any, name: str = "host1") -> None:
        with self.in_cell_of(name):
            super().one_period(name)  # type: ignore[misc]
