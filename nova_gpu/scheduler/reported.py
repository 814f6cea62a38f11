# SPDX-License-Identifier: Apache-2.0
"""What flavors ask for and hosts report, each read once and not once per host or request."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

from nova import objects
from nova.scheduler.host_manager import HostState

from nova_gpu.core import names
from nova_gpu.core.flavor import request, vgpu_request
from nova_gpu.core.flavor.query import Request
from nova_gpu.core.flavor.request import GPURequest
from nova_gpu.core.flavor.vgpu_request import VGPURequest
from nova_gpu.core.scheduling import stats
from nova_gpu.core.scheduling.stats import HostStats, Report

# So many different strings are held, so that each request of a cloud of 10,000 hosts finds them all
# even where no two hosts report the same.
_MOST_REPORTS = 16_384


def extra_specs(spec: objects.RequestSpec) -> Mapping[str, str]:
    """The extra specs of its flavor; none where it came without."""
    found: Mapping[str, str] = spec.flavor.extra_specs if "extra_specs" in spec.flavor else {}
    return found


def asked(spec: objects.RequestSpec) -> GPURequest | None:
    """The GPUs that the flavor of *spec* asks for, or ``None`` where it asks for none.

    :raises InvalidExtraSpec: as :func:`nova_gpu.core.flavor.request.parse`
    """
    return _asked(frozenset(extra_specs(spec).items()))


def asked_vgpus(spec: objects.RequestSpec) -> VGPURequest | None:
    """The vGPUs that were asked for, in our words

    :raises InvalidExtraSpec: as :func:`nova_gpu.core.flavor.vgpu_request.parse`
    """
    specs = extra_specs(spec)
    return vgpu_request.parse(specs) if vgpu_request.asks_for_vgpus(specs) else None


def requests(spec: objects.RequestSpec) -> tuple[Request, ...]:
    """All that the flavor asks for: GPUs, vGPUs, both, or nothing.

    :raises InvalidExtraSpec: where one of them cannot be understood
    """
    both = (asked(spec), asked_vgpus(spec))
    return tuple(each for each in both if each is not None)


@functools.lru_cache(maxsize=256)
def _asked(items: frozenset[tuple[str, str]]) -> GPURequest | None:
    return request.parse(dict(items))


def of(host_state: HostState) -> HostStats | None:
    """What the host has, or ``None`` where it reports nothing of GPUs; as :func:`report`."""
    found = report(host_state)
    return None if found is None else found.host


def report(host_state: HostState) -> Report | None:
    """What the host reports, or ``None`` where it reports nothing of GPUs.

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
    """What *text* says, read once for all hosts and requests."""
    read = stats.loads(text)
    return dataclasses.replace(read, host=_shared_host(read.host))


@functools.lru_cache(maxsize=4096)
def _shared_host(read: HostStats) -> HostStats:
    """The first of the equal facts of hosts, so that equal hosts share one object."""
    return read


def forget() -> None:
    """Everything, as after a start."""
    _read.cache_clear()
    _shared_host.cache_clear()
    _asked.cache_clear()
