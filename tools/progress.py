# SPDX-License-Identifier: Apache-2.0
"""A line every ten seconds that says which suites run, and about how long they will take.

This module runs before anything is installed, so it needs the standard library only.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from pathlib import Path

from tools.figures import Figure, Figures
from tools.outcomes import TEST_LINE

_EVERY_S = 10.0
# So long is a run too short to tell how busy the machine is.
_EARLY_S = 60.0


@dataclasses.dataclass
class _Suite:
    """A suite's state: the log in which it writes its tests, and the number of those read there."""

    expected: Figure
    log: Path | None = None
    began: float = 0.0
    offset: int = 0
    done: int = 0
    is_over: bool = False

    def count(self) -> int:
        """Return the number of tests that the suite has done, by the whole lines of its log."""
        if self.log and self.log.exists():
            with self.log.open("rb") as file:
                file.seek(self.offset)
                text = file.read().rpartition(b"\n")[0]
            self.offset += len(text)
            lines = text.decode(errors="replace").splitlines()
            self.done += sum(bool(TEST_LINE.match(line)) for line in lines)
        return self.done

    def fraction(self) -> float:
        """Return how much of the suite is done, from 0 to 1."""
        if self.is_over:
            return 1.0
        if not self.log:
            return 0.0
        # At the last test a suite is not over.
        if self.expected.tests > 1:
            return min(self.count() / self.expected.tests, 0.95)
        return min((time.monotonic() - self.began) / self.expected.seconds, 0.95)


class Progress:
    """The suites of a run; within the context the lines are printed."""

    def __init__(self, names: list[str], figures: Figures) -> None:
        nothing = Figure(60.0, 60.0, 0)
        self._suites = {name: _Suite(figures.get(name, nothing)) for name in names}
        self._began = time.monotonic()
        self._phase = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._print, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def prepares(self, phase: str) -> None:
        """Say what is done before the suites; empty when they begin."""
        self._phase = phase

    def begins(self, name: str, log: Path) -> None:
        """Note that a suite, or another command of it, writes to *log* from now on."""
        suite = self._suites[name]
        suite.log, suite.offset = log, 0
        suite.began = suite.began or time.monotonic()

    def ends(self, name: str) -> None:
        """Note that a suite is over."""
        self._suites[name].is_over = True

    def line(self) -> str:
        """Return the line as of now."""
        elapsed = time.monotonic() - self._began
        if self._phase:
            running = [self._phase]
        else:
            running = [
                f"{name} {suite.count()} of {suite.expected.tests or '?'}"
                for name, suite in self._suites.items()
                if suite.log and not suite.is_over
            ]
        waiting = [name for name, suite in self._suites.items() if not suite.log]
        over = sum(suite.is_over for suite in self._suites.values())
        words = [", ".join(running) or "nothing runs"]
        words += [f"waiting: {' '.join(waiting)}"] if waiting and not self._phase else []
        words += [f"{over} of {len(self._suites)} suites over"] if over else []
        return (
            f"{elapsed:5.0f} s: {'; '.join(words)}; about {self._left_s(elapsed) / 60:.0f} min left"
        )

    def _left_s(self, elapsed: float) -> float:
        """Return about how many seconds are left, by the processor time of the suites."""
        processors = os.cpu_count() or 1
        suites = list(self._suites.values())
        whole = sum(suite.expected.processor_s for suite in suites) / processors
        done = sum(suite.expected.processor_s * suite.fraction() for suite in suites) / processors
        # A busy or slow machine takes longer than that of the figures.
        slowness = elapsed / done if done and elapsed > _EARLY_S and not self._phase else 1.0
        slowness = min(max(slowness, 1.0), 5.0)
        longest = max(
            (suite.expected.seconds * (1 - suite.fraction()) for suite in suites), default=0
        )
        return max((whole - done) * slowness, longest)

    def _print(self) -> None:
        while not self._over.wait(_EVERY_S):
            print(f"   {self.line()}", flush=True)
