# SPDX-License-Identifier: Apache-2.0
"""The traits of hosts that are drained, or reserved against preemptible instances until a time.

That time is part of the trait's name, so the trait expires everywhere at once, even if the process
that set it is gone. All times are UTC, without a zone.
"""

from __future__ import annotations

import datetime

from nova_gpu.core.placement.closing_trait import ClosingTrait
from nova_gpu_fleet.core import names, preemptible

_FORMAT = "%Y%m%dT%H%M%SZ"


def reserving(end: datetime.datetime) -> str:
    """Return the trait that closes a compute node to preemptible instances until *end*."""
    return f"{names.KEPT_UNTIL}{end:{_FORMAT}}"


def until(trait: str) -> datetime.datetime | None:
    """Return the end time in the name of *trait*, ``None`` for any other trait."""
    if not trait.startswith(names.KEPT_UNTIL):
        return None
    try:
        return datetime.datetime.strptime(trait.removeprefix(names.KEPT_UNTIL), _FORMAT)
    except ValueError:
        return None


def _is_in_force(name: str, now: datetime.datetime) -> bool:
    end = until(name)
    return end is not None and end > now


def _of_host(name: str) -> str:
    end = until(name)
    return f"no preemptible instance until {end.isoformat(timespec='seconds')}Z" if end else ""


DRAINED = ClosingTrait(
    name=names.DRAINED,
    hosts="are drained and take no new instance with GPUs",
    host="is drained: it takes no new instance with GPUs",
    at_start="its host is drained",
    in_list=lambda name: "drained",
)
RESERVED = ClosingTrait(
    name=names.KEPT_UNTIL,
    hosts="keep them from preemptible instances now",
    host="keeps its GPUs from preemptible instances now",
    at_start="its host's GPUs are reserved for instances that are not preemptible, for now",
    in_list=_of_host,
    concerns=preemptible.is_preemptible,
    is_in_force=_is_in_force,
)
TRAITS = (DRAINED, RESERVED)
