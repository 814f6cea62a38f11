# SPDX-License-Identifier: Apache-2.0
"""Suites side by side: those of one lane one after another, the lanes at the same time.

A suite waits most of its time, for guests, for a VM, for Nova's own pauses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent import futures

from tools.testing import report
from tools.testing.session import Result
from tools.testing.suites import Suite


def run(
    selected: Sequence[Suite],
    work: Callable[[Suite], Result],
    stop: threading.Event,
    at_once: int,
) -> tuple[Result, ...]:
    """What *work* returns for each of *selected*, in their order; of *at_once* lanes at a time.

    Where one lane or this thread fails, or a signal ends it, *stop* is set for the others, and this
    returns only when they have ended.
    """
    names = dict.fromkeys(suite.lane for suite in selected)
    lanes = [tuple(suite for suite in selected if suite.lane == name) for name in names]

    def one(lane: Sequence[Suite]) -> list[Result]:
        found = []
        for suite in lane:
            if stop.is_set():
                break
            with report.marked(suite.name if min(len(lanes), at_once) > 1 else ""):
                found.append(work(suite))
        return found

    with futures.ThreadPoolExecutor(at_once) as pool:
        running = [pool.submit(one, lane) for lane in lanes]
        try:
            found = [result for done in futures.as_completed(running) for result in done.result()]
        except BaseException:
            stop.set()
            raise
    return tuple(sorted(found, key=lambda result: selected.index(result.suite)))
