# SPDX-License-Identifier: Apache-2.0
"""Which instances may be moved to make room, and how."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from nova_gpu.core import exception, names
from nova_gpu.core.planning.fleet import Way


class Consent(enum.StrEnum):
    """What a flavor says of it"""

    LIVE = "live"
    COLD = "cold"
    NONE = "none"


ALLOWED = " or ".join(Consent)
WAITS = "its move or resize waits for openstack server migration confirm, or revert"


def parse(extra_specs: Mapping[str, str]) -> Consent:
    """:raises InvalidExtraSpec: where it is not one of ALLOWED"""
    text = extra_specs.get(names.MOVE, Consent.LIVE)
    try:
        return Consent(text.strip().lower())
    except ValueError as e:
        raise exception.InvalidExtraSpec(
            names.MOVE, text, "it does not say how an instance may be moved", ALLOWED
        ) from e


def way(status: str, consent: Consent, *, live: bool, keeps_disk: bool) -> tuple[Way | None, str]:
    """How an instance may be moved, or ``None`` and why it stays.

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
