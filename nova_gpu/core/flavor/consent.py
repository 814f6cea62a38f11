# SPDX-License-Identifier: Apache-2.0
"""The consent of a flavor to moves of its instances that make room for others."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from nova_gpu.core import names
from nova_gpu.core.flavor import words


class Consent(enum.StrEnum):
    """The values of ``gpu:move``."""

    LIVE = "live"
    COLD = "cold"
    NONE = "none"


def parse(extra_specs: Mapping[str, str]) -> Consent:
    """Return how the flavor lets its instances be moved.

    :raises InvalidExtraSpec: where it is none of the words
    """
    text = extra_specs.get(names.MOVE, Consent.LIVE)
    reason = "it does not say how an instance may be moved"
    return words.parse_word(names.MOVE, text, Consent, reason)
