# SPDX-License-Identifier: Apache-2.0
"""What a request costs in nova-scheduler's filters for each host, by Nova's own code."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from nova import weights
from nova.scheduler import filters, host_manager
from nova.scheduler.filters import (
    aggregate_instance_extra_specs,
    compute_capabilities_filter,
    pci_passthrough_filter,
)

from benchmarks import host_states, report
from nova_gpu.scheduler import host_reports
from nova_gpu.scheduler.filters import GPUFilter
from nova_gpu.scheduler.weights import GPUWeigher

Hosts = Sequence[host_manager.HostState]


class Nothing(filters.BaseHostFilter):  # type: ignore[misc]
    """What Nova itself takes around a filter."""

    def host_passes(self, host_state: host_manager.HostState, spec: Any) -> bool:
        return True


def rows(number: int, runs: int) -> Iterator[report.Row]:
    """:raises RuntimeError: where a filter does not pass all hosts: it has then not judged them"""
    hosts = host_states.states(number)
    spec, alias = host_states.spec(), host_states.alias_spec()
    handler = filters.HostFilterHandler()

    def filtering(one: Any, of: Any = spec) -> Callable[[], None]:
        def call() -> None:
            if len(handler.get_filtered_objects([one], hosts, of)) != number:
                raise RuntimeError(f"{type(one).__name__} does not pass all hosts")

        return call

    weighed = [weights.WeighedObject(host, 0.0) for host in hosts]

    def both() -> None:
        ours()
        GPUWeigher().weigh_objects(weighed, spec)

    ours = filtering(GPUFilter())
    forget()
    first_us = _took_us(ours, number)
    others = {
        "ComputeCapabilitiesFilter": filtering(
            compute_capabilities_filter.ComputeCapabilitiesFilter()
        ),
        "AggregateInstanceExtraSpecsFilter": filtering(
            aggregate_instance_extra_specs.AggregateInstanceExtraSpecsFilter()
        ),
        "PciPassthroughFilter": filtering(pci_passthrough_filter.PciPassthroughFilter(), alias),
        "a filter that does nothing": filtering(Nothing()),
    }
    took = _least_us([ours, both, *others.values()], hosts, runs)
    for name, other in zip(others, took[2:], strict=True):
        yield report.Row(f"{number:,} hosts: GPUFilter, {name}", took[0], other, "us/host")
    stock = took[2]
    name = f"{number:,} hosts: GPUFilter and GPUWeigher, {next(iter(others))}"
    yield report.Row(name, took[1], stock, "us/host")
    yield report.Row(f"{number:,} hosts: GPUFilter, first time", first_us, None, "us/host")
    yield report.Row(f"{number:,} hosts: what is kept", _kept_kb(both, hosts), None, "KB/host")


def forget() -> None:
    """As after a start of nova-scheduler"""
    host_reports.forget()
    gc.collect()


def _least_us(calls: Sequence[Callable[[], None]], hosts: Hosts, runs: int) -> Sequence[float]:
    """Processor time of each call per host: the least of some runs, in turns, which other load
    disturbs least."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(runs + 1):
        for call, of in zip(calls, times, strict=True):
            host_states.refresh(hosts)
            gc.collect()
            of.append(_took_us(call, len(hosts)))
    return [min(of[1:]) for of in times]


def _took_us(call: Callable[[], None], number: int) -> float:
    started = time.process_time()
    call()
    return (time.process_time() - started) * 1e6 / number


def _kept_kb(call: Callable[[], None], hosts: Hosts) -> float:
    """Units of 1000 bytes that outlive a request, where nothing was known before it."""
    forget()
    stats = [host.stats for host in hosts]
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    host_states.refresh(hosts)
    call()
    for host, host_stats in zip(hosts, stats, strict=True):
        host.stats = host_stats
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / 1000 / len(hosts)
