# SPDX-License-Identifier: Apache-2.0
"""The terms on which a flavor lets its instances' GPUs be taken for other instances."""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping

from nova_gpu.core import exception
from nova_gpu.core.flavor import parsers
from nova_gpu.core.flavor.parsers import OnStop
from nova_gpu.core.names import ON_STOP
from nova_gpu_fleet.core import names


class End(enum.StrEnum):
    """What happens to a preempted instance: it is stopped or deleted."""

    STOP = "stop"
    DELETE = "delete"

    @property
    def in_words(self) -> str:
        return {End.STOP: "stopped", End.DELETE: "deleted"}[self]


ALLOWED_TIMES = "a minimum time such as 90s, 30m, 2h or 1d"

_TIME = re.compile("([0-9]{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}


@dataclasses.dataclass(frozen=True, slots=True)
class Preemptible:
    """The terms on which one flavor's instances may be preempted.

    ``least_s``: the seconds that an instance has its GPUs before they may be taken.
    """

    least_s: int
    end: End

    @classmethod
    def of(cls, extra_specs: Mapping[str, str]) -> Preemptible | None:
        """Return the terms of a flavor, ``None`` if its GPUs may not be taken.

        :raises InvalidExtraSpec: if a value is not allowed, or if a stopped instance would keep its
            GPUs
        """
        text, end_text = extra_specs.get(names.PREEMPTIBLE), extra_specs.get(names.ON_PREEMPT)
        end = End.STOP if end_text is None else parse_end(end_text)
        if text is None:
            if end_text is None:
                return None
            raise exception.InvalidExtraSpec(
                names.ON_PREEMPT,
                end_text,
                "the flavor's GPUs may not be taken",
                f"{names.ON_PREEMPT} together with {names.PREEMPTIBLE}",
            )
        least_s = parse_time(text)
        on_stop = extra_specs.get(ON_STOP, OnStop.KEEP)
        if end is End.STOP and parsers.parse_on_stop(on_stop) is not OnStop.RELEASE:
            raise exception.InvalidExtraSpec(
                names.PREEMPTIBLE,
                text,
                "a stopped instance would keep its GPUs",
                f"{ON_STOP}={OnStop.RELEASE} or {names.ON_PREEMPT}={End.DELETE} as well",
            )
        return cls(least_s, end)


def is_preemptible(extra_specs: Mapping[str, str]) -> bool:
    """Return whether a flavor has ``gpu:preemptible``, even with an invalid value."""
    return names.PREEMPTIBLE in extra_specs


def in_words(extra_specs: Mapping[str, str]) -> str:
    """Return the terms of a preemptible flavor, as a text after its GPUs."""
    terms = Preemptible.of(extra_specs)
    least = extra_specs[names.PREEMPTIBLE].strip()
    return f", preemptible after {least}, then {terms.end.in_words}" if terms else ""


def parse_time(text: str) -> int:
    """Parse the value of ``gpu:preemptible``, such as ``30m``, into seconds."""
    if not (match := _TIME.fullmatch(text.strip().lower())):
        raise exception.InvalidExtraSpec(
            names.PREEMPTIBLE,
            text,
            "it is not the minimum time that an instance keeps its GPUs",
            ALLOWED_TIMES,
        )
    return int(match[1]) * _SECONDS[match[2]]


def parse_end(text: str) -> End:
    """Parse the value of ``gpu:on_preempt``."""
    reason = "it does not say what happens to a preempted instance"
    return parsers.parse_word(names.ON_PREEMPT, text, End, reason)
