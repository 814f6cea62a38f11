# SPDX-License-Identifier: Apache-2.0
"""Reports of hosts, parsed once and not once per host or request."""

from __future__ import annotations

import functools

from nova.scheduler.host_manager import HostState

from nova_gpu.core import names
from nova_gpu.core.scheduling import stats
from nova_gpu.core.scheduling.stats import HostStats, Report

# So many different strings are held, so that each request of a cloud of 10,000 hosts finds them all
# even where no two hosts report the same.
_MOST_REPORTS = 16_384


def host_stats(host_state: HostState) -> HostStats | None:
    """Return what the host has, or ``None`` where it reports nothing of GPUs; as :func:`report`."""
    stats_ = report(host_state)
    return None if stats_ is None else stats_.host


def report(host_state: HostState) -> Report | None:
    """Return what the host reports, or ``None`` where it reports nothing of GPUs.

    Hosts that report the same share one object, which can be compared by ``is``, and so do those
    that have the same.

    :raises InvalidStats: where its string cannot be read
    """
    text = host_state.stats.get(names.STATS)
    if text is None:
        return None
    return _read(text)


@functools.lru_cache(maxsize=_MOST_REPORTS)
def _read(text: str) -> Report:
    """Return what *text* says, read once for all hosts and requests."""
    return stats.loads(text)


def forget() -> None:
    """Clear everything, as after a start."""
    _read.cache_clear()
    stats.forget()
