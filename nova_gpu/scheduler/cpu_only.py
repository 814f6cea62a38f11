# SPDX-License-Identifier: Apache-2.0
"""Instances without GPUs on hosts that have some."""

from __future__ import annotations

from collections.abc import Callable

from nova import objects
from nova.scheduler.host_manager import HostState

from nova_gpu.conf import CONF
from nova_gpu.conf.scheduling import NEVER
from nova_gpu.core import exception
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.scheduling import fit
from nova_gpu.core.scheduling.stats import Report
from nova_gpu.scheduler import reported


def judge(spec: objects.RequestSpec, asked: FlavorRequest) -> Callable[[HostState], str | None]:
    """A function that says why a host is not for an instance without devices; ``None`` where it is,
    and of every host where the instance asks for devices."""
    if not asked.is_cpu_only:
        return lambda host_state: None
    insists = CONF.gpu.cpu_only_instances == NEVER

    def refusal(host_state: HostState) -> str | None:
        try:
            report = reported.report(host_state)
        except exception.InvalidStats as e:
            return str(e) if insists else None
        if report is None or not report.cards:
            return None
        if insists:
            return "it has GPUs, and [gpu]cpu_only_instances is never"
        return _stranded(host_state, spec, report) if report.reserved_per_free_gpu else None

    return refusal


def _stranded(host_state: HostState, spec: objects.RequestSpec, report: Report) -> str | None:
    # Nova counts what the host keeps for itself among what is used.
    vcpus = host_state.vcpus_total * host_state.cpu_allocation_ratio - host_state.vcpus_used
    total_mib = host_state.total_usable_ram_mb
    used_mib = total_mib - host_state.free_ram_mb
    memory_mib = total_mib * host_state.ram_allocation_ratio - used_mib
    return fit.stranded(
        vcpus - spec.vcpus,
        memory_mib - spec.memory_mb,
        report.free_cards,
        report.reserved_per_free_gpu,
    )
