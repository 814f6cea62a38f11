# SPDX-License-Identifier: Apache-2.0
"""How long each suite takes on this machine: as long as it did when it last ran as a whole."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.testing.environment import STATE
from tools.testing.session import Result
from tools.testing.suites import Suite

FILE = STATE / "lengths.json"


def expected(selected: Sequence[Suite], path: Path = FILE) -> Mapping[str, float]:
    """Seconds by suite: those that were measured here, else the usual ones."""
    measured = _read(path)
    return {suite.name: measured.get(suite.name, suite.usual_s) for suite in selected}


def keep(results: Sequence[Result], path: Path = FILE) -> None:
    """Those of the suites that passed; of one that failed it says nothing how long it takes."""
    measured = dict(_read(path))
    for result in results:
        if result.outcome.passed and not result.outcome.failed:
            measured[result.suite.name] = round(result.seconds, 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(measured, indent=1, sort_keys=True))


def _read(path: Path) -> Mapping[str, float]:
    """Nothing where there is no file, or not one of these: then it is written anew."""
    with contextlib.suppress(FileNotFoundError, ValueError, AttributeError, TypeError):
        found = json.loads(path.read_text())
        return {str(name): float(seconds) for name, seconds in found.items()}
    return {}
