# SPDX-License-Identifier: Apache-2.0
"""The cache of hosts' GPU reports: each text is parsed once, not once per host or request."""

from __future__ import annotations

import dataclasses
import functools

from nova import objects
from nova.scheduler.host_manager import HostState

from nova_gpu.core import names
from nova_gpu.core.scheduling import stats
from nova_gpu.core.scheduling.stats import HostStats, Report

# The number of different reports in the cache. It suffices for a cloud of 10,000 hosts, even if all
# reports differ.
_MOST_REPORTS = 16_384


def host_stats(host_state: HostState) -> HostStats | None:
    """Return the GPU groups of a host from its report, ``None`` if it has no report."""
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


@dataclasses.dataclass(frozen=True, slots=True)
class Amount:
    """What a host has of a resource in all, and what it would have left."""

    total: float
    left: float


def used_mib(host: HostState) -> int:
    """Return the memory in use on *host*, with what the host reserves for itself."""
    return int(host.total_usable_ram_mb - host.free_ram_mb)


def left(
    host: HostState, spec: objects.RequestSpec, unreported: tuple[int, int] = (0, 0)
) -> tuple[Amount, Amount]:
    """Return the vCPUs and the memory in MiB that *host* has, and would have left.

    Both are counted as Placement does: with the allocation ratio, without what the host reserves
    for itself, which Nova counts as used.

    :param unreported: the vCPUs and MiB that will be in use on *host* and its record does not show
    """
    # Nova fills these in once it has read the host.
    vcpus = host.vcpus_total * (host.cpu_allocation_ratio or 1.0)
    memory_mib = host.total_usable_ram_mb * (host.ram_allocation_ratio or 1.0)
    more_vcpus, more_mib = unreported
    return (
        Amount(vcpus, vcpus - host.vcpus_used - more_vcpus - spec.vcpus),
        Amount(memory_mib, memory_mib - used_mib(host) - more_mib - spec.memory_mb),
    )


def forget() -> None:
    """Empty the cache, for tests and benchmarks."""
    _read.cache_clear()
    stats.forget()
