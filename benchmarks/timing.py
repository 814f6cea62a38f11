# SPDX-License-Identifier: Apache-2.0
"""How long nova-compute's driver takes to spawn."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any


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

    driver.spawn = timed
    try:
        yield seconds
    finally:
        del driver.spawn


def median_s(times: list[float]) -> float:
    """Without the first, which also fetches the image."""
    return statistics.median(times[1:])
