# SPDX-License-Identifier: Apache-2.0
"""The cache of hosts' GPU reports: each text is parsed once, not once per host or request."""

from __future__ import annotations

import functools

from nova.scheduler.host_manager import HostState

from nova_gpu.core import names
from nova_gpu.core.scheduling import stats
from nova_gpu.core.scheduling.stats import HostStats, Report

# The number of different reports in the cache. It suffices for a cloud of 10,000 hosts, even if all
# reports differ.
_MOST_REPORTS = 16_384


def host_stats(host_state: HostState) -> HostStats | None:
    """Return the GPU groups of a host from its report, ``None`` if it has no report.

    :raises InvalidStats: as :func:`report`
    """
    stats_ = report(host_state)
    return None if stats_ is None else stats_.host


def report(host_state: HostState) -> Report | None:
    """Return the parsed GPU report of a host, ``None`` if it has no report.

    Hosts with equal reports share one object, and hosts with equal GPU groups that of
    :func:`host_stats`, so both can be compared by ``is``.

    :raises InvalidStats: if the report cannot be parsed
    """
    text = host_state.stats.get(names.STATS)
    return None if text is None else _read(text)


@functools.lru_cache(maxsize=_MOST_REPORTS)
def _read(text: str) -> Report:
    return stats.loads(text)


def forget() -> None:
    """Empty the cache, for tests and benchmarks."""
    _read.cache_clear()
    stats.forget()
