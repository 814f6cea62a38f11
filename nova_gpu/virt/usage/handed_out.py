# SPDX-License-Identifier: Apache-2.0
"""What the pool handed out to claims whose guests are not being started yet.

Nova's tracker counts a claimed GPU as assigned at once. But in every period it fills its sets of
what is assigned anew from the database (``ResourceTracker._populate_assigned_resources``, the same
in Nova 32 to 34), where a fresh claim may not be saved yet. From one filling to the next such a set
is one and the same object: what is no longer in it was released, and is free. What is not in a set
that was filled since may only be forgotten there, and stays out of the pool for a bounded time.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Collection, Set
from typing import Any

from oslo_log import log as logging

from nova_gpu.core import device
from nova_gpu.core.device import Device

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class _Claimed:
    since: float
    until: float
    assigned: Set[Any]  # the tracker's own set, which is told from others by being itself


class HandedOut:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claimed: dict[Device, _Claimed] = {}

    def add(
        self,
        addresses: Collection[Device],
        back: Collection[Device],
        assigned: Set[Any],
        timeout_s: float,
    ) -> None:
        """*addresses* leave the pool for *timeout_s* at most; *back*, of the same claim, return.

        :param assigned: the set that the tracker is about to add them to
        """
        now = time.monotonic()
        with self._lock:
            for address in back:
                self._claimed.pop(address, None)
            claimed = _Claimed(now, now + timeout_s, assigned)
            self._claimed.update(dict.fromkeys(addresses, claimed))

    def compare(self, unassigned: Collection[Device], assigned: Set[Any]) -> None:
        """Returns to the pool what the tracker has released, and says what it may have forgotten.

        :param assigned: the tracker's set of ``objects.Resource``, now
        :param unassigned: the other cards of the same provider
        """
        known = {device.parse(each.identifier) for each in assigned}
        with self._lock:
            for address in known & self._claimed.keys():
                self._claimed[address] = dataclasses.replace(
                    self._claimed[address], assigned=assigned
                )
            for address in set(unassigned) & self._claimed.keys():
                if self._claimed[address].assigned is assigned:
                    del self._claimed[address]
                else:
                    _say(address, self._claimed[address])

    def settled(self, since: float) -> None:
        """Every claim older than *since* (``time.monotonic()``) was started or given up."""
        with self._lock:
            for address, claimed in list(self._claimed.items()):
                if claimed.since < since:
                    del self._claimed[address]

    def drop(self, addresses: Collection[Device]) -> None:
        """Forget devices: a start holds them now, or their claim is being given up."""
        with self._lock:
            for address in addresses:
                self._claimed.pop(address, None)

    def waiting(self) -> frozenset[Device]:
        """What is out of the pool"""
        now = time.monotonic()
        with self._lock:
            return frozenset(a for a, claimed in self._claimed.items() if claimed.until > now)


def _say(address: Device, claimed: _Claimed) -> None:
    now = time.monotonic()
    if claimed.until > now:
        LOG.warning(
            "GPU %s is kept from a claim: %d s ago it was handed out to another, which Nova's "
            "resource tracker does not know any more and whose guest is not being started. It can "
            "be claimed in %d s at the latest ([gpu]handed_out_timeout).",
            address,
            now - claimed.since,
            claimed.until - now + 1,
        )
