# SPDX-License-Identifier: Apache-2.0
"""Suites side by side: those of one lane one after another, the lanes at the same time.

The longest lane begins first, so that none runs on alone at the end. There is one lane more at a
time than processors, since a suite waits much of its time, for guests, for a VM, for Nova's own
pauses; those whose tests are spread over all processors stand back (:func:`niceness`), and take
what the others leave.
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
    lanes = _lanes(selected)

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


def niceness(suite: Suite) -> int:
    """A third of a processor's time where another wants it too: nothing waits for ever."""
    return 5 if suite.spread else 0


def _lanes(selected: Sequence[Suite]) -> list[tuple[Suite, ...]]:
    """Who has no lane is one of his own. The longest first."""
    lanes: dict[str, tuple[Suite, ...]] = {}
    for suite in selected:
        name = suite.lane or suite.name
        lanes[name] = (*lanes.get(name, ()), suite)
    return sorted(lanes.values(), key=lambda lane: -sum(suite.usual_s for suite in lane))
