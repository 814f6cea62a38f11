# SPDX-License-Identifier: Apache-2.0
"""Runs of the same tests, compared."""

from __future__ import annotations

import enum

from tools.testing.outcome import Outcome


class Driver(enum.StrEnum):
    STOCK = "stock"
    OURS = "ours"


def not_passed(run: Outcome) -> set[str]:
    """Failed or skipped."""
    return {*(each.test for each in run.failures), *(each.test for each in run.skips)}


def passed_by_stock_alone(ours: Outcome, stock: Outcome, again: Outcome) -> set[str]:
    """By name. *stock* ran what *ours* did not pass, and *again* with our driver what it did."""
    return (not_passed(ours) - not_passed(stock)) & not_passed(again)


def lost(run: Outcome, expected: int) -> int:
    """How many tests have no outcome, as when a worker dies."""
    return max(0, expected - run.passed - len(not_passed(run)))


def line(name: str, ours: Outcome, stock: Outcome, verdict: set[str], missing: int) -> str:
    said = f"{ours.passed} pass with our driver"
    if not_passed(ours):
        both = not_passed(ours) & not_passed(stock)
        said += f", {len(not_passed(ours))} do not ({len(both)} with the stock driver)"
    if missing:
        said += f", {missing} were not run"
    return f"{name}: {said}; {len(verdict) or 'none'} pass with the stock driver alone"
