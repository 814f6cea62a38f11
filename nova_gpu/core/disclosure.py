# SPDX-License-Identifier: Apache-2.0
"""How much the user of an instance is told of why it cannot have its GPUs."""

from __future__ import annotations

import dataclasses
import enum

_LEAST = "no host can give the GPUs asked for now"


class Detail(enum.StrEnum):
    """``[gpu]fault_detail``"""

    ALL = "all"
    FITTING = "fitting"
    LEAST = "least"


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """Why no host can give the GPUs asked for.

    ``full`` is for operators. ``fitting`` has what the user could find out as well by asking for
    less, and neither how many GPUs there are nor how many are in use.
    """

    full: str
    fitting: str
    least: str = _LEAST

    @classmethod
    def of_request(cls, text: str) -> Reason:
        """Of a mistake in flavor or image, which says nothing of hosts"""
        return cls(text, text, text)

    @classmethod
    def of_kind(cls, text: str) -> Reason:
        """Of which GPUs there are"""
        return cls(text, text)

    def told(self, detail: Detail) -> str:
        """To the instance's user"""
        return {Detail.ALL: self.full, Detail.FITTING: self.fitting}.get(detail, self.least)
