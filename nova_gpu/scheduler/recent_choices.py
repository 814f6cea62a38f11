# SPDX-License-Identifier: Apache-2.0
"""The hosts that this nova-scheduler process has recently chosen, for the ranks of later requests.

A host reports its free GPUs once a period. Until then its report does not show the choice, so
concurrent requests would choose the same host, and lose their claims in Placement to each other.
Each process of nova-scheduler knows only its own choices; its threads share them without a lock.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Mapping
from typing import NamedTuple

from nova.scheduler.host_manager import HostState

from nova_gpu.core.scheduling.stats import Report

# A host reports within this time, because Nova's period is a minute.
_LASTS_S = 90.0
# A request that comes so long after the last choice counts as the only one under way.
_BURST_S = 10.0
# One process makes fewer choices in that time; beyond the limit the oldest are dropped.
_MOST = 4096


class _Choice(NamedTuple):
    made_at: float
    instance_uuid: str
    host_uuid: str
    resource_class: str
    amount: int
    report: Report


class Taken:
    """The numbers of devices that recent choices took on each host and its report does not show."""

    def __init__(
        self, amounts: Mapping[tuple[str, int], int], *, in_burst: bool = False, one: bool = False
    ) -> None:
        """Store the amounts.

        :param amounts: the number of devices, by the host's UUID and the ``id()`` of its report at
            the time of the choice: a newer report shows the choice itself
        :param in_burst: whether other requests are under way
        :param one: whether the present request is for a single instance
        """
        self._amounts = amounts
        self._in_burst = in_burst
        self._one = one

    def __bool__(self) -> bool:
        return bool(self._amounts)

    def of(self, host: HostState, report: Report) -> int:
        return self._amounts.get((host.uuid, id(report)), 0)

    def turn(self, unreported: int, place: int) -> tuple[int, int]:
        """Return the rank of a host among otherwise equal hosts; lower is better.

        Outside of a burst of requests all ranks are equal, so that Nova's other weighers decide. In
        a burst these would send all requests to the same few hosts, because their data is as old as
        the reports. So the host with the smallest unreported amount comes first, then, for a single
        instance, the host that the filter passed first, which differs from instance to instance.
        For several instances Nova's weighers decide among hosts with the same amount.

        :param unreported: the number of devices that recent choices took on the host
        :param place: the index of the host in the order in which the filter passed the hosts
        """
        if not self._in_burst:
            return 0, 0
        return unreported, place if self._one else 0


NOTHING = Taken({})


class Choices:
    """The choices of hosts in the last 90 seconds; any thread may add and read them any time."""

    def __init__(self) -> None:
        self._made: collections.deque[_Choice] = collections.deque(maxlen=_MOST)

    def add(
        self,
        instance_uuid: str,
        host: HostState,
        report: Report,
        resource_class: str,
        amount: int,
    ) -> None:
        """Add the choice of *host* for an instance, unless a recent one exists for the instance.

        :param report: the host's report at the time of the choice
        :param amount: the number of devices of *resource_class* that the instance requests
        """
        now = time.monotonic()
        # Nova weighs hosts again for the alternates of the last instance of a request.
        if all(choice.instance_uuid != instance_uuid for choice in self._lately(now)):
            made = _Choice(now, instance_uuid, host.uuid, resource_class, amount, report)
            self._made.append(made)

    def taken(self, resource_class: str, *, one: bool) -> Taken:
        """Return what the recent choices took of *resource_class*, for the present request.

        :param one: whether the present request is for a single instance
        """
        now = time.monotonic()
        lately = self._lately(now)
        amounts: collections.Counter[tuple[str, int]] = collections.Counter()
        for choice in lately:
            if choice.resource_class == resource_class:
                amounts[choice.host_uuid, id(choice.report)] += choice.amount
        in_burst = any(now - choice.made_at < _BURST_S for choice in lately[-1:])
        return Taken(amounts, in_burst=in_burst, one=one)

    def _lately(self, now: float) -> list[_Choice]:
        # Iterate over a copy, because other threads may add choices meanwhile.
        return [choice for choice in self._made.copy() if now - choice.made_at < _LASTS_S]
