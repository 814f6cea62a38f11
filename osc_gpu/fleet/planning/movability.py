# SPDX-License-Identifier: Apache-2.0
"""Ways to move an instance to make room, and reasons why it stays."""

from __future__ import annotations

from nova_gpu.core import names
from nova_gpu.core.flavor.parsers import Consent
from osc_gpu.fleet.planning.fleet import Way

WAITS = "its move or resize waits for openstack server migration confirm, or revert"


def way(status: str, consent: Consent, *, live: bool, keeps_disk: bool) -> tuple[Way | None, str]:
    """Return how an instance may be moved, or ``None`` and why it stays.

    :param status: Nova's, as its API has it
    :param live: whether all that it has of GPUs can move as it runs
    :param keeps_disk: whether its disk comes along when it moves cold, as Nova copies none of a
        container
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
