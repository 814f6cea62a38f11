# SPDX-License-Identifier: Apache-2.0
"""How a flavor lets its instances be moved, so that others have room."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from nova_gpu.core import names
from nova_gpu.core.flavor import words


class Consent(enum.StrEnum):
    """What a flavor says of it"""

    LIVE = "live"
    COLD = "cold"
    NONE = "none"


def parse(extra_specs: Mapping[str, str]) -> Consent:
    """How the flavor lets its instances be moved.

    :raises InvalidExtraSpec: where it is none of the words
    """
    text = extra_specs.get(names.MOVE, Consent.LIVE)
    reason = "it does not say how an instance may be moved"
    return words.parse_word(names.MOVE, text, Consent, reason)
