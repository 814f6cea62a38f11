# SPDX-License-Identifier: Apache-2.0
"""What a flavor says of a number: ``>= 40960``.

The spelling is that of Nova's ComputeCapabilitiesFilter, where ``=`` means at least. A bare number
means that too: who asks for 40960 MiB does not mind more.
"""

from __future__ import annotations

import dataclasses
import enum
import re

from nova_gpu.core import exception


class Operator(enum.StrEnum):
    AT_LEAST = ">="
    EQUAL = "=="
    AT_MOST = "<="


ALLOWED = "N, '>= N' or '= N' (at least), '== N' or '<= N'"

_OPERATORS = {"=": Operator.AT_LEAST} | {operator.value: operator for operator in Operator}


@dataclasses.dataclass(frozen=True, slots=True)
class Quantity:
    """What a number has to be, in the unit of its word."""

    operator: Operator
    value: int

    def matches(self, value: str | int | None) -> bool:
        """Whether *value* satisfies this. What is not known, or is no number, never does."""
        if value is None or not str(value).isdecimal():
            return False
        match self.operator:
            case Operator.AT_LEAST:
                return int(value) >= self.value
            case Operator.EQUAL:
                return int(value) == self.value
            case Operator.AT_MOST:
                return int(value) <= self.value

    @property
    def equal_to(self) -> str | None:
        """The one number that satisfies this, where that can be said without knowing which exist"""
        return str(self.value) if self.operator is Operator.EQUAL else None

    def __str__(self) -> str:
        return f"{self.operator} {self.value}"


def parse(key: str, text: str) -> Quantity:
    """The quantity that the extra spec *key* states as *text*.

    :raises InvalidExtraSpec: where *text* is not one of the forms in :data:`ALLOWED`
    """

    def refused(reason: str) -> exception.InvalidExtraSpec:
        return exception.InvalidExtraSpec(key, text, reason, ALLOWED)

    # ">=40960" is what most people write.
    match = re.fullmatch(r"\s*([^\s0-9]*)\s*(\S*)\s*", text)
    if match is None:
        raise refused("there must be one number")
    operator = _OPERATORS.get(match[1] or ">=")
    if operator is None:
        raise refused(f"{match[1]!r} is not an operator for a number")
    if not re.fullmatch("0*[1-9][0-9]{0,8}", match[2]):
        raise refused(f"{match[2]!r} is not a whole number above 0")
    return Quantity(operator, int(match[2]))
