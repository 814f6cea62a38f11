# SPDX-License-Identifier: Apache-2.0
"""Hosts whose GPUs no preemptible instance gets for a time: the trait that says so, and until when.

The time stands in the trait's own name, so that it is over everywhere at once, whatever became of
who set it. All times are UTC, without a zone.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from nova_gpu.core import names

_FORMAT = "%Y%m%dT%H%M%SZ"


def trait(until: datetime.datetime) -> str:
    """Return the name of the trait of a compute node's provider."""
    return f"{names.KEPT_UNTIL}{until:{_FORMAT}}"


def until(trait: str) -> datetime.datetime | None:
    """Return the end of the time, ``None`` for any other trait."""
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
