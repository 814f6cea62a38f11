# SPDX-License-Identifier: Apache-2.0
"""The trait that reserves a host's GPUs against preemptible instances until a time.

The end time is part of the trait's name, so the trait expires everywhere at once, even if the
process that set it is gone. All times are UTC, without a zone.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from nova_gpu.core import names

_FORMAT = "%Y%m%dT%H%M%SZ"


def trait(until: datetime.datetime) -> str:
    """Return the trait that closes a compute node to preemptible instances until *until*."""
    return f"{names.KEPT_UNTIL}{until:{_FORMAT}}"


def until(trait: str) -> datetime.datetime | None:
    """Return the end time in the name of *trait*, ``None`` for any other trait."""
    if not trait.startswith(names.KEPT_UNTIL):
        return None
    try:
        return datetime.datetime.strptime(trait.removeprefix(names.KEPT_UNTIL), _FORMAT)
    except ValueError:
        return None


def in_force(traits: Iterable[str], now: datetime.datetime) -> frozenset[str]:
    """Return the *traits* that have not expired."""
    ends = {name: until(name) for name in traits}
    return frozenset(item for item, end in ends.items() if end and end > now)
