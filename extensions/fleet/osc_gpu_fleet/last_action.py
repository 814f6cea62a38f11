# SPDX-License-Identifier: Apache-2.0
"""The newest action on a server, and why it failed."""

from __future__ import annotations

from typing import Any

from osc_gpu import failures


def last(connection: Any, server: Any) -> Any:
    """Return the server's newest action, failed or not, or ``None`` if it has none."""
    return next(iter(failures.newest_first(connection, server)), None)


def reason(connection: Any, server: Any) -> str | None:
    """Return why the server's newest action failed.

    Return ``None`` if it did not fail, or policy hides the reason from the user.
    """
    done = last(connection, server)
    if not (done and done.message):
        return None
    return next(iter(failures.details(connection, server, done)), None)
