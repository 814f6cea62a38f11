# SPDX-License-Identifier: Apache-2.0
"""Virtual functions with which guests fail to start, one after another.

Where a QEMU is killed while it starts with a vGPU of NVIDIA's, its function may be of no use from
then on: sysfs shows nothing of it, and each later start with it fails (kernel/hypeman,
lib/devices/GPU.md, of L40S with R580). Only a cycle of all of the card's functions mends that.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable

from oslo_log import log as logging

from nova_gpu.core.model import PciAddress

LOG = logging.getLogger(__name__)

MOST = 3


class FailedStarts:
    """How often each function failed since a guest was started with it; a new service counts anew.
    Threads may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: collections.Counter[PciAddress] = collections.Counter()

    def failed(self, functions: Iterable[PciAddress], why: Exception) -> None:
        with self._lock:
            for function in functions:
                self._times[function] += 1
                if self._times[function] == MOST:
                    LOG.error(
                        "Virtual function %(function)s is given to nobody new: %(times)d guests in "
                        "a row failed to start with it, the last one with: %(why)s. Where others "
                        "of its card start, take the card's functions away and enable them again "
                        "while no guest has one (/usr/lib/nvidia/sriov-manage -d, then -e, with "
                        "the card's address), then restart nova-compute.",
                        {"function": function, "times": MOST, "why": why},
                    )

    def started(self, functions: Iterable[PciAddress]) -> None:
        with self._lock:
            for function in functions:
                self._times.pop(function, None)

    def withheld(self) -> frozenset[PciAddress]:
        with self._lock:
            return frozenset(each for each, times in self._times.items() if times >= MOST)

    def keep(self, there: Iterable[PciAddress]) -> None:
        """Forget those that are not *there*: what comes back was enabled anew."""
        with self._lock:
            for function in self._times.keys() - frozenset(there):
                del self._times[function]
