# SPDX-License-Identifier: Apache-2.0
"""Which skips a run under CI accepts: tests/allowed-skips.txt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tools.testing.outcome import Skip

if TYPE_CHECKING:
    from tools.testing.session import Result


class Malformed(Exception):
    """A line of the file does not say why it is there."""


def read(path: Path) -> tuple[str, ...]:
    """The file's lines ``<part of a skip's reason> -- <why that is accepted>``, without the why.

    Empty lines and lines that begin with ``#`` are comments. Raises Malformed.
    """
    allowances = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        part, separator, why = line.partition(" -- ")
        if not (separator and part.strip() and why.strip()):
            raise Malformed(f"{path}:{number}: {line!r}: write '<part of the reason> -- <why>'")
        allowances.append(part.strip())
    return tuple(allowances)


def refused(allowances: Sequence[str], results: Sequence[Result]) -> tuple[Skip, ...]:
    """The skips whose reason contains none of ``allowances``."""
    return tuple(
        skip
        for result in results
        for skip in result.outcome.skips
        if not any(part in skip.reason for part in allowances)
    )
