# SPDX-License-Identifier: Apache-2.0
"""What guests have left, released beside the periodic task, and what fails later and later again.

A command or a driver that hangs would keep the task, and with it the start of the service, for as
long as all of them take one after another.
"""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Collection, Iterable

import futurist

from nova_gpu.core.device import Device
from nova_gpu.core.model import PciAddress
from nova_gpu.virt import threads

# By default an hour
_MOST_PERIODS = 60


class Retries:
    """Side by side over cards, and one after another of a card.

    :param card_of: the card that a device is a part of
    """

    def __init__(self, card_of: Callable[[Device], PciAddress]) -> None:
        self._card_of = card_of
        self._begun: dict[PciAddress, futurist.Future[None]] = {}
        self._period = 0
        self._lock = threading.Lock()
        # How often it failed, and in which period it is tried again.
        self._failed: dict[Device, tuple[int, int]] = {}

    def begin(self, left: Iterable[Device], release: Callable[[Device], bool]) -> None:
        """Once in a period: has those of *left* released that it is time for, and waits for none.

        :param release: whether it is over; raises nothing
        """
        self._period += 1
        devices = sorted(left, key=str)
        with self._lock:
            known = {each: self._failed[each] for each in devices if each in self._failed}
            self._failed = known
        self._begun = {card: each for card, each in self._begun.items() if not each.done()}
        due = collections.defaultdict(list)
        for device in devices:
            if known.get(device, (0, 0))[1] <= self._period:
                due[self._card_of(device)].append(device)
        for card in due.keys() - self._begun.keys():
            begun = threads.begin(lambda those: self._release(those, release), due[card])
            self._begun[card] = begun

    def wait(self) -> bool:
        """Returns when nothing that was begun goes on, and whether anything did."""
        begun = [each for each in self._begun.values() if not each.done()]
        for each in begun:
            each.result()
        return bool(begun)

    def _release(self, devices: Collection[Device], release: Callable[[Device], bool]) -> None:
        for device in devices:
            is_over = release(device)
            with self._lock:
                times, _ = self._failed.pop(device, (0, 0))
                if not is_over:
                    after = min(2**times, _MOST_PERIODS)
                    self._failed[device] = (times + 1, self._period + after)
