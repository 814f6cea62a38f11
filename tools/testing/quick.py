# SPDX-License-Identifier: Apache-2.0
"""Which functional tests ``tools/test quick`` runs, tests/quick.txt, and which unit tests not."""

from __future__ import annotations

from pathlib import Path

from tools.testing.environment import ROOT

FILE = ROOT / "tests" / "quick.txt"
# A quarter of the unit tests' time, for what other unit tests reach: these try all cases.
WITHOUT = (
    r"^tests\.unit\.(benchmarks|fuzz|virt\.fabric\.test_fabric_crashes"
    r"|virt\.usage\.test_ledger_transitions|core\.planning\.test_plan)\."
)


def names(path: Path = FILE) -> tuple[str, ...]:
    """The tests' names, one a line; what follows a ``#`` is a comment."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    return tuple(line for line in lines if line)
