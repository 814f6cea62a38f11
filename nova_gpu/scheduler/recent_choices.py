# SPDX-License-Identifier: Apache-2.0
"""The hosts that this process has lately chosen, and that have not reported it yet.

A host says once a period what it has free. Until then it looks to all requests as it did, and those
that are under way would choose the same one, and lose their claims to each other in Placement. Each
process of nova-scheduler knows its own choices alone, which its threads share without a lock.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Mapping
from typing import NamedTuple

from nova.scheduler.host_manager import HostState

from nova_gpu.core.scheduling.stats import Report

# Within it a host has reported: Nova's period is a minute.
_LASTS_S = 90.0
# A request that comes so long after the last one is under way with none.
_BURST_S = 10.0
# More than one process chooses in that time; the oldest are forgotten first.
_MOST = 4096


class _Choice(NamedTuple):
    made_at: float
    instance_uuid: str
    host_uuid: str
    resource_class: str
    amount: int
    report: Report


class Taken:
    """The amounts of each host that were chosen and are not reported."""

    def __init__(
        self, amounts: Mapping[tuple[str, int], int], *, in_burst: bool = False, one: bool = False
    ) -> None:
        """Store the amounts.

        :param amounts: by the host's uuid and the ``id()`` of what it had reported
        :param in_burst: whether other requests are under way
        :param one: whether this one is for one instance
        """
        self._amounts = amounts
        self._in_burst = in_burst
        self._one = one

    def __bool__(self) -> bool:
        return bool(self._amounts)

    def of(self, host: HostState, report: Report) -> int:
        return self._amounts.get((host.uuid, id(report)), 0)

    def turn(self, unreported: int, place: int) -> tuple[int, int]:
        """Return the rank of a host among otherwise equal hosts; less is better.

        Those of which the least is taken come first, in the instance's own order. Outside of a
        burst Nova's other weighers decide, which in one would send all requests to the same few
        hosts: what those go by is as old. For several instances they still do, as they know best
        which hosts other instances do not use.

        :param place: in the order in which the filter passed the hosts on
        """
        if not self._in_burst:
            return 0, 0
        return unreported, place if self._one else 0


NOTHING = Taken({})


class Choices:
    """The choices of the last minutes. Any thread may add one or ask at any time."""

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
        """Add one choice.

        :param report: what the host had reported when it was chosen
        """
        now = time.monotonic()
        # Nova has hosts weighed once more for the alternates of the last instance of a request.
        if all(choice.instance_uuid != instance_uuid for choice in self._lately(now)):
            made = _Choice(now, instance_uuid, host.uuid, resource_class, amount, report)
            self._made.append(made)

    def taken(self, resource_class: str, *, one: bool) -> Taken:
        """Return what of the hosts was chosen, for a request for devices of *resource_class*."""
        now = time.monotonic()
        lately = self._lately(now)
        amounts: collections.Counter[tuple[str, int]] = collections.Counter()
        for choice in lately:
            if choice.resource_class == resource_class:
                amounts[choice.host_uuid, id(choice.report)] += choice.amount
        in_burst = any(now - choice.made_at < _BURST_S for choice in lately[-1:])
        return Taken(amounts, in_burst=in_burst, one=one)

    def _lately(self, now: float) -> list[_Choice]:
        # What is copied at once nobody changes meanwhile.
        return [choice for choice in self._made.copy() if now - choice.made_at < _LASTS_S]
