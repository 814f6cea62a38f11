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

# By the compute node's uuid, the string it reported last and what that says. Strings of 10,000
# hosts and more are held, so that the next request finds them all; see :func:`report`.
_by_node: dict[str, tuple[str, Report]] = {}
_MOST_NODES = 100_000


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
    known = _by_node.get(host_state.uuid)
    if known is not None and known[0] == text:
        return known[1]
    read = stats.loads(text)
    read = _shared(dataclasses.replace(read, host=_shared_host(read.host)))
    if len(_by_node) >= _MOST_NODES:
        _by_node.clear()  # nodes that are gone are in it, too
    _by_node[host_state.uuid] = (text, read)
    return read


@functools.lru_cache(maxsize=8192)
def _shared(read: Report) -> Report:
    """The first of the reports that are equal to *read*."""
    return read


@functools.lru_cache(maxsize=4096)
def _shared_host(read: HostStats) -> HostStats:
    """The first of the equal facts of hosts, so that equal hosts share one object."""
    return read


def forget() -> None:
    """Everything, as after a start."""
    _by_node.clear()
    _shared.cache_clear()
    _shared_host.cache_clear()
    _asked.cache_clear()
