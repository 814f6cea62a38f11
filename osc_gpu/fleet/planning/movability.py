# SPDX-License-Identifier: Apache-2.0
"""How an instance may be moved to make room, or why it stays."""

from __future__ import annotations

from nova_gpu.core import names
from nova_gpu.core.flavor.parsers import Consent
from osc_gpu.fleet.planning.fleet import Way

WAITS = "its move or resize waits for openstack server migration confirm, or revert"


def way(status: str, consent: Consent, *, live: bool, keeps_disk: bool) -> tuple[Way | None, str]:
    """Return how an instance may be moved and an empty text, or ``None`` and why it stays.

    :param status: the server's status in Nova's API
    :param consent: the moves that its flavor permits
    :param live: whether all of its GPUs can migrate while it runs
    :param keeps_disk: whether a cold migration moves its disk; Nova does not copy a container's
    """
    if consent is Consent.NONE:
        return None, f"its flavor says {names.MOVE} none"
    if status == "SHUTOFF":
        if not keeps_disk and consent is not Consent.COLD:
            return None, (
                f"it is a container, whose disk does not move, and its flavor does not say "
                f"{names.MOVE} cold"
            )
        return Way.STOPPED, ""
    if status == "VERIFY_RESIZE":
        return None, WAITS
    if status != "ACTIVE":
        return None, f"its status is {status}"
    if live:
        return Way.LIVE, ""
    if consent is Consent.COLD:
        return Way.COLD, ""
    return None, f"it runs, and its flavor does not say {names.MOVE} cold"
