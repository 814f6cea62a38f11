# SPDX-License-Identifier: Apache-2.0
"""What Nova's client of Placement has no function for."""

from __future__ import annotations

from typing import Any

from nova_gpu.core import exception

# Of traits
_VERSION = "1.6"


def get(client: Any, url: str) -> Any:
    """The body of Placement's answer.

    :param client: nova.scheduler.client.report.SchedulerReportClient
    :raises PlacementFailed: where there is none to use
    """
    answer = client.get(url, version=_VERSION)
    if answer.status_code != 200:
        raise exception.PlacementFailed(url, f"{answer.status_code} {answer.text}")
    return answer.json()
