# SPDX-License-Identifier: Apache-2.0
"""What tools/test prints."""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tools.testing.outcome import Outcome, Skip

if TYPE_CHECKING:
    from tools.testing.session import Result

_EXCERPT = 60

# The suite whose lines these are, where several run side by side
_mark: contextvars.ContextVar[str] = contextvars.ContextVar("mark", default="")


@contextlib.contextmanager
def marked(name: str) -> Iterator[None]:
    """Lines of this thread begin with *name*."""
    token = _mark.set(name)
    try:
        yield
    finally:
        _mark.reset(token)


def heading(name: str, summary: str) -> None:
    print(f"== {name}: {summary}", flush=True)


def say(text: str) -> None:
    print(_line(text), flush=True)


def excerpt(lines: Sequence[str], log: Path) -> None:
    """The end of a failed command's output, in one piece."""
    shown = [*(f"| {line}" for line in lines[-_EXCERPT:]), f"all of it: {log}"]
    print("\n".join(map(_line, shown)), flush=True)


def summary(
    setup_s: float,
    elapsed_s: float,
    results: Sequence[Result],
    refused: Sequence[Skip],
) -> None:
    """Print a line per suite, what was skipped, and the closing line, which .ci/run reads.

    A suite's share is that of all processor time: side by side, how long one takes says as much of
    the others. What a daemon does that outlives the process that started it is not counted.
    """
    total = sum((result.outcome for result in results), Outcome())
    cpu_s = sum(result.cpu_s for result in results)
    print(
        f"\n{'':<14}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}{'CPU s':>9}{'share':>7}"
    )
    print(f"{'(install)':<14}{'':>24}{setup_s:>9.1f}")
    for result in results:
        did = result.outcome
        print(
            f"{result.suite.name:<14}{did.passed:>8}{did.failed:>8}{len(did.skips):>8}"
            f"{result.seconds:>9.1f}{result.cpu_s:>9.1f}{result.cpu_s / max(cpu_s, 0.1):>7.0%}"
        )
    busy = cpu_s / max(elapsed_s, 0.1) / (os.cpu_count() or 1)
    print(
        f"{'(all)':<14}{total.passed:>8}{total.failed:>8}{len(total.skips):>8}"
        f"{elapsed_s:>9.1f}{cpu_s:>9.1f}{busy:>7.0%} of {os.cpu_count()} CPUs"
    )
    for skip in total.skips:
        print(f"SKIP {skip.test}: {skip.reason}")
    for failure in total.unsteady:
        print(f"UNSTEADY, passed when it was run again alone: {failure}")
    for failure in total.failures:
        print(f"FAIL {failure}")
    for skip in refused:
        print(f"NOT ALLOWED to skip {skip.test}: {skip.reason} (tests/allowed-skips.txt)")
    print(total, flush=True)


def _line(text: str) -> str:
    mark = _mark.get()
    return f"   {f'{mark:<12}' if mark else ''}{text}"
