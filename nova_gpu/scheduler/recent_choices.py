# SPDX-License-Identifier: Apache-2.0
"""The hosts that this nova-scheduler process has recently chosen, for the ranks of later requests.

A host reports its free GPUs once a period, and at each claim. Until then its report does not show
the choice: packing would choose another host, and concurrent requests would lose their claims in
Placement to each other.
Each process of nova-scheduler knows only its own choices; its threads share them without a lock.
"""

from __future__ import annotations

import collections
import contextlib
import time
import uuid
import weakref
from collections.abc import Sequence
from typing import NamedTuple

from nova import objects
from nova.scheduler.host_manager import HostState

from nova_gpu.core.flavor.request import GPURequest, Request
from nova_gpu.core.scheduling import fit
from nova_gpu.core.scheduling.stats import Report
from nova_gpu.scheduler import host_reports, multi_create

# A host reports within this time, because Nova's period is a minute.
_LASTS_S = 90.0
# A request that comes so long after the last choice counts as the only one under way.
_BURST_S = 10.0
# One process makes fewer choices in that time; beyond the limit the oldest are dropped.
_MOST = 4096


class Choice(NamedTuple):
    """The choice of a host for an instance, or for one that is to follow."""

    made_at: float
    instance_uuid: str
    host_uuid: str
    request: Request
    report: Report
    # The devices of the kind that are to be free once the host has claimed those of all requests
    left: int
    # Whether another process was sending instances there, too
    anothers: bool = False
    # Of further instances of a multi-create request: its RequestSpec; else None
    spec: weakref.ref[objects.RequestSpec] | None = None
    # The NUMA cells that the instance asks for
    cells: objects.InstanceNUMATopology | None = None

    def is_of(self, spec: objects.RequestSpec | None) -> bool:
        """Return whether it is of further instances of *spec*, or of a request that has ended."""
        return self.spec is not None and ((own := self.spec()) is None or own is spec)


class Taken:
    """The requests that recent choices sent to each host and its report does not show."""

    def __init__(
        self, choices: Choices, resource_class: str = "", spec: objects.RequestSpec | None = None
    ) -> None:
        """Store what the choices are at present, for the request *spec* for *resource_class*."""
        self._choices = choices
        self._now = time.monotonic()
        lately = choices.lately(self._now)
        self._in_burst = any(self._now - choice.made_at < _BURST_S for choice in lately[-1:])
        if not self._in_burst:
            choices.begin_burst()
        self._is_apart = choices.has_met_another
        # A request for several goes by the order of the filter, which is its own.
        self._own_order = 0
        if spec is not None and "instance_uuid" in spec and not multi_create.has(spec):
            self._own_order = uuid.UUID(spec.instance_uuid).fields[0]
        self._by_host: dict[str, list[Choice]] = {}
        for choice in lately:
            if choice.request.resource_class == resource_class and not choice.is_of(spec):
                self._by_host.setdefault(choice.host_uuid, []).append(choice)

    def __bool__(self) -> bool:
        return bool(self._by_host)

    def of(self, host: HostState, report: Report) -> Sequence[Request]:
        """Return the requests sent to *host* that *report*, its present one, does not show."""
        return [choice.request for choice in self.unreported(host, report)]

    def unreported(self, host: HostState, report: Report) -> Sequence[Choice]:
        """Return the choices of *host* that *report*, its present one, does not show.

        A newer report than that at the time of a choice shows the choice, unless it came before the
        host's claim: so a choice of the last seconds counts until as few devices are free as were
        to be free after it.
        """
        choices = []
        for choice in self._by_host.get(host.uuid, ()):
            if choice.report is report:
                choices.append(choice)
            elif self._now - choice.made_at >= _BURST_S:
                self._choices.drop(choice)
            # Do not drop a choice earlier: other requests still have an older report before them.
            elif free(choice.request, report) > choice.left:
                choices.append(choice)
        return choices

    def see(self, host: HostState, report: Report) -> None:
        """Remember *report*, the present one of *host*, and whether another process is there, too.

        Call this for each host before :meth:`is_anothers`.
        """
        self._choices.see(host, report, self._now)
        if self._is_shared(host, report):
            self._choices.has_met_another = True

    def is_anothers(self, host: HostState, report: Report) -> bool:
        """Return whether another process is sending instances to *host* in a burst of requests.

        That is so if the report has just changed without a choice of this process, or has fewer
        cards free than its choices leave. To send more there would cost both processes claims.
        """
        if self._in_burst and host.uuid not in self._by_host:
            return self._choices.has_changed(host, self._now)
        return self._is_shared(host, report)

    def _is_shared(self, host: HostState, report: Report) -> bool:
        """Return whether another process sends instances to a host that this one chose, too."""
        if not self._in_burst or host.uuid not in self._by_host:
            return False
        own = self._by_host[host.uuid][-1]
        fewer = isinstance(own.request, GPURequest) and free(own.request, report) < own.left
        return own.anothers or fewer

    def turn(self, unreported: int, place: int, *, breaks_up: bool) -> tuple[int, int]:
        """Return the rank of a host among otherwise equal hosts; lower is better.

        Outside of a burst of requests all ranks are equal, so that Nova's other weighers decide. In
        a burst these would go by each claim. So the host with the smallest unreported amount comes
        first.

        Then hosts come in the order in which the filter passed them, which is the same in all
        processes: together they break up few hosts, and an instance that loses its claim goes to
        the next host of all. Once a process has met another one on a host, and for instances that
        break up no host, each instance has an order of its own, which costs fewer claims.

        :param unreported: the number of devices that recent choices took on the host
        :param place: the index of the host in the order in which the filter passed the hosts
        :param breaks_up: whether the instance would leave some of the host's free devices
        """
        if not self._in_burst:
            return 0, 0
        in_order = breaks_up and not self._is_apart
        return unreported, place if in_order else place ^ self._own_order


def free(request: Request, report: Report) -> int:
    """Return how many devices of the kind in *request* are free by *report*."""
    if isinstance(request, GPURequest):
        return report.free_gpus
    return fit.most_free(request, report.divided)


class Choices:
    """The choices of hosts in the last 90 seconds; any thread may add and read them any time."""

    def __init__(self) -> None:
        self._made: collections.deque[Choice] = collections.deque(maxlen=_MOST)
        self.begin_burst()

    def begin_burst(self) -> None:
        """Forget what was seen of hosts before this burst of requests."""
        # By the host's UUID: the report that was seen last, and since when
        self._seen: dict[str, tuple[Report, float]] = {}
        # Whether another process has sent instances to a host that this one chose
        self.has_met_another = False

    def add(
        self,
        instance_uuid: str,
        host: HostState,
        report: Report,
        request: Request,
        before: Sequence[Request] = (),
        *,
        anothers: bool = False,
        cells: objects.InstanceNUMATopology | None = None,
    ) -> None:
        """Add the choice of *host* for an instance, unless a recent one exists for the instance.

        :param report: the host's report at the time of the choice
        :param before: the requests that the report does not show, from :meth:`Taken.of`
        :param anothers: the result of :meth:`Taken.is_anothers`
        :param cells: the NUMA cells that the instance asks for
        """
        now = time.monotonic()
        # Nova weighs hosts again for the alternates of the last instance of a request.
        if all(choice.instance_uuid != instance_uuid for choice in self.lately(now)):
            left = free(request, report) - sum(other.count for other in (*before, request))
            made = Choice(
                now, instance_uuid, host.uuid, request, report, left, anothers, cells=cells
            )
            self._made.append(made)

    def expect(
        self, spec: objects.RequestSpec, host: HostState, report: Report, request: Request
    ) -> None:
        """Note that further instances of a multi-create request will follow to *host*.

        Other requests then go elsewhere; they would drive each other from host to host.
        """
        if not multi_create.has(spec):
            return
        for choice in self._made.copy():
            if choice.is_of(spec):
                self.drop(choice)
        of_host = Taken(self, request.resource_class).of(host, report)
        room = free(request, report) - sum(other.count for other in of_host)
        rest = spec.num_instances - 1 - multi_create.on(host)
        now, reference = time.monotonic(), weakref.ref(spec)
        for n in range(1, 1 + min(rest, room // request.count)):
            left = room - n * request.count
            made = Choice(now, "", host.uuid, request, report, left, spec=reference)
            self._made.append(made)

    def drop(self, choice: Choice) -> None:
        """Forget *choice*.

        Choices that a report shows are dropped because the next report may equal the one before it.
        """
        with contextlib.suppress(ValueError, IndexError):  # another thread was faster
            self._made.remove(choice)

    def see(self, host: HostState, report: Report, now: float) -> None:
        """Remember *report*, the present one of *host*, and since when it is."""
        seen = self._seen.get(host.uuid)
        if seen is None or seen[0] is not report:
            self._seen[host.uuid] = (report, now if seen else -_BURST_S)

    def has_changed(self, host: HostState, now: float) -> bool:
        """Return whether the report of *host* that was seen last has replaced another lately."""
        seen = self._seen.get(host.uuid)
        return seen is not None and now - seen[1] < _BURST_S

    def lately(self, now: float) -> list[Choice]:
        # Iterate over a copy, because other threads may add choices meanwhile.
        return [choice for choice in self._made.copy() if now - choice.made_at < _LASTS_S]


class _Load(NamedTuple):
    """An instance that was sent to a host, and what was in use there by the host's record."""

    sent_at: float
    vcpus: int
    memory_mib: int
    used_vcpus: int
    used_mib: int


class Loads:
    """The CPU and memory of the instances that this process sent to hosts in the last seconds."""

    def __init__(self) -> None:
        self._by_host: dict[str, list[_Load]] = {}
        # The last instance of each request that was added
        self._added: weakref.WeakKeyDictionary[objects.RequestSpec, str | None] = (
            weakref.WeakKeyDictionary()
        )

    def unreported(self, host: HostState) -> tuple[int, int]:
        """Return how many vCPUs and MiB will be in use on *host* that its record does not show."""
        loads = self._recent(host)
        if not loads:
            return 0, 0
        vcpus = sum(load.vcpus for load in loads) + loads[0].used_vcpus - host.vcpus_used
        memory_mib = sum(load.memory_mib for load in loads) + loads[0].used_mib
        return max(vcpus, 0), max(memory_mib - host_reports.used_mib(host), 0)

    def add(self, host: HostState, spec: objects.RequestSpec) -> None:
        """Add the instance that *spec* asks for, which will be on *host*, unless it was added."""
        instance_uuid = spec.instance_uuid if "instance_uuid" in spec else None
        if instance_uuid == self._added.get(spec):  # weighed again, for its alternates
            return
        self._added[spec] = instance_uuid
        used = host.vcpus_used, host_reports.used_mib(host)
        load = _Load(time.monotonic(), spec.vcpus, spec.memory_mb, *used)
        self._by_host[host.uuid] = [*self._recent(host), load]

    def _recent(self, host: HostState) -> list[_Load]:
        loads = self._by_host.get(host.uuid, ())
        return [load for load in loads if time.monotonic() - load.sent_at < _BURST_S]


NOTHING = Taken(Choices())
