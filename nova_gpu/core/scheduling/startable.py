# SPDX-License-Identifier: Apache-2.0
"""How many instances of a flavor could start, as far as administrators let projects know it.

It stands in the flavor, which projects may read: neither Nova nor Placement tells them of hosts.
"""

from __future__ import annotations

import dataclasses
import enum
import re

from nova_gpu.core import exception, names

ALLOWED = "none, few, several or a number, and since when: 'few at 2026-11-24T12:20Z'"
# Nova has 255 characters for an extra spec.
_REASON_LENGTH = 200
_NONE = "none"
_TEXT = re.compile(
    r"(none|few|several|[1-9][0-9]{0,8}) at ([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}Z)"
    rf"(?:: (.{{1,{_REASON_LENGTH}}}))?"
)


class Detail(enum.StrEnum):
    """What is published"""

    NUMBER = "number"
    WORDS = "words"
    NOTHING = "nothing"


@dataclasses.dataclass(frozen=True, slots=True)
class Startable:
    """``instances``: ``none``, ``few``, ``several`` or a number. ``at``: when that was so.
    ``reason``: why none."""

    instances: str
    at: str
    reason: str = ""

    def __str__(self) -> str:
        """The value of the extra spec"""
        reason = f": {' '.join(self.reason.split())[:_REASON_LENGTH]}" if self.reason else ""
        return f"{self.instances} at {self.at}{reason}"


def parse(text: str) -> Startable:
    """:raises InvalidExtraSpec: where it is not one of ALLOWED"""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise exception.InvalidExtraSpec(
            names.CAPACITY, text, "it is not what openstack gpu capacity --publish writes", ALLOWED
        )
    return Startable(match[1], match[2], match[3] or "")


def told(instances: int, detail: Detail, few: int) -> str:
    """*instances* as they are published.

    :param few: up to so many are few
    """
    if not instances:
        return _NONE
    if detail is Detail.NUMBER:
        return str(instances)
    return "few" if instances <= few else "several"
