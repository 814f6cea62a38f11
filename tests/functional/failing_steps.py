# SPDX-License-Identifier: Apache-2.0
"""Steps of Nova's that fail in the course of an instance's move."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import fixtures
from oslo_utils import importutils

RPC = "nova.compute.rpcapi.ComputeAPI"
CLIENT = "nova.scheduler.client.report.SchedulerReportClient"
GUEST = "nova.virt.libvirt.driver.LibvirtDriver._create_guest_with_network"


def failing(method: str) -> fixtures.MonkeyPatch:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("this step fails")

    return fixtures.MonkeyPatch(method, fail)


@contextlib.contextmanager
def refused_allocations() -> Iterator[None]:
    """Placement takes allocations away, and gives none."""
    put = importutils.import_class(CLIENT).put_allocations

    def refuse(client: Any, context: Any, consumer: str, payload: Mapping[str, Any]) -> bool:
        return not payload["allocations"] and bool(put(client, context, consumer, payload))

    with fixtures.MonkeyPatch(f"{CLIENT}.put_allocations", refuse):
        yield
