# SPDX-License-Identifier: Apache-2.0
"""What becomes of an instance's GPUs when it is stopped."""

from __future__ import annotations

import enum

from nova_gpu.core import names
from nova_gpu.core.flavor import words


class OnStop(enum.StrEnum):
    """What a flavor, an image or a host says of it"""

    KEEP = "keep"
    RELEASE = "release"


def parse(text: str) -> OnStop:
    """:raises InvalidExtraSpec: where it is neither of the words"""
    reason = "it does not say whether a stopped instance has its GPUs"
    return words.parse_word(names.ON_STOP, text, OnStop, reason)
