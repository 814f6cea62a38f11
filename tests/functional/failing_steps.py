# SPDX-License-Identifier: Apache-2.0
"""Steps of Nova's that fail in the course of an instance's move."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import fixtures
from oslo_utils import importutils

from tests.fixtures import economy

MANAGER = "nova.compute.manager.ComputeManager"
DRIVER = "nova.virt.libvirt.driver.LibvirtDriver"
RPC = "nova.compute.rpcapi.ComputeAPI"
CLIENT = "nova.scheduler.client.report.SchedulerReportClient"


@dataclasses.dataclass(frozen=True)
class Step:
    """A method of Nova's that fails before, or else after, it has done what it does."""

    method: str
    after: bool = False

    def __str__(self) -> str:
        return f"{'after' if self.after else 'in'} {self.method.rpartition('.')[2]}"

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        owner, _, name = self.method.rpartition(".")
        original: Callable[..., Any] = getattr(importutils.import_class(owner), name)

        def fail(*args: Any, **kwargs: Any) -> None:
            if self.after:
                original(*args, **kwargs)
            raise RuntimeError("this step fails")

        with fixtures.MonkeyPatch(self.method, fail):
            yield


GUEST = Step(f"{DRIVER}._create_guest_with_network")


class Hosts:
    # As in a cloud: no host hears of what fails at another one.
    CAST_AS_CALL = False
    leaves: Mapping[str, str] = MappingProxyType(
        {"domain": "Nova leaves it at the source, without its GPUs"}
    )

    HOSTS: tuple[str, ...] = ("host1", "host2")

    def act(self, **action: Any) -> None:
        self.api.post_server_action(self.server["id"], action)

    def fails(self, step: Step, status: str = "ERROR", **action: Any) -> None:
        with step.failing():
            self.act(**action)
            self.settles(status)

    def settles(self, status: str) -> None:
        self._wait_until_settled(self.server, status)
        economy.wait_for_quiet(5)

    def hard_reboot(self) -> None:
        self.act(reboot={"type": "HARD"})
        self.settles("ACTIVE")


@contextlib.contextmanager
def refused_allocations() -> Iterator[None]:
    """Placement takes allocations away, and gives none."""
    put = importutils.import_class(CLIENT).put_allocations

    def refuse(client: Any, context: Any, consumer: str, payload: Mapping[str, Any]) -> bool:
        return not payload["allocations"] and bool(put(client, context, consumer, payload))

    with fixtures.MonkeyPatch(f"{CLIENT}.put_allocations", refuse):
        yield
