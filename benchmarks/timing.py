# SPDX-License-Identifier: Apache-2.0
"""How long calls take, and nova-compute's driver to spawn."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock


def medians_ms(
    calls: Sequence[Callable[[], object]],
    runs: int,
    clock: Callable[[], float],
    uncounted: int = 1,
) -> list[float]:
    """Of each call, in milliseconds of *clock*, which has seconds; they take turns.

    :param uncounted: how many runs of each come before those that count
    """
    times: list[list[float]] = [[] for _ in calls]
    for run in range(uncounted + runs):
        for call, taken in zip(calls, times, strict=True):
            started = clock()
            call()
            if run >= uncounted:
                taken.append((clock() - started) * 1000)
    return [statistics.median(taken) for taken in times]


@contextlib.contextmanager
def spawning(driver: Any) -> Iterator[list[float]]:
    """Seconds of each ``driver.spawn`` while it lasts."""
    seconds: list[float] = []
    spawn = driver.spawn

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return spawn(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - started)

    with mock.patch.object(driver, "spawn", timed):
        yield seconds


def median_s(times: list[float]) -> float:
    """Without the first, which also fetches the image."""
    return statistics.median(times[1:])
