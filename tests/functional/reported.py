# SPDX-License-Identifier: Apache-2.0
"""Hosts that report to the scheduler as other releases of nova-gpu do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import fixtures

from nova_gpu.core.scheduling import stats
from tests.functional import base

_Change = Callable[[dict[str, Any]], dict[str, Any]]


def report_as(case: base.GPUServersTestBase, host: str, change: _Change) -> None:
    """Let *host* report as another release: what this one reports, changed."""
    dumps = stats.dumps

    def changed(report: stats.Report) -> str:
        return json.dumps(change(json.loads(dumps(report))))

    with fixtures.MonkeyPatch("nova_gpu.core.scheduling.stats.dumps", changed):
        case.period(host)


def unreadable(report: dict[str, Any]) -> dict[str, Any]:
    """Change a report so that it says the same in another way, which this release cannot read."""
    return report | {"v": stats.VERSION + 1}


def _first(group: dict[str, Any]) -> dict[str, Any]:
    return {key: group[key] for key in ("product", "architecture", "mode", "total")}


def _more(group: dict[str, Any]) -> dict[str, Any]:
    return {**group, "more": {"is": 1}, "islands": {**group["islands"], "pod": 8}}


# Without what a release adds, and with what the next one may
READABLE: Mapping[str, _Change] = {
    "older": lambda now: {key: now[key] for key in ("v", "hypervisor", "groups")},
    "first": lambda now: now | {"v": 1, "groups": [_first(g) for g in now["groups"]]},
    "newer": lambda now: (
        now | {"more": [], "release": "99", "groups": [_more(g) for g in now["groups"]]}
    ),
}
