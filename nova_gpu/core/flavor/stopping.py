# SPDX-License-Identifier: Apache-2.0
"""What becomes of an instance's GPUs when it is stopped."""

from __future__ import annotations

import enum

from nova_gpu.core import exception, names


class OnStop(enum.StrEnum):
    """What a flavor, an image or a host says of it"""

    KEEP = "keep"
    RELEASE = "release"


ALLOWED = " or ".join(OnStop)


def parse(text: str) -> OnStop:
    """:raises InvalidExtraSpec: where it is not one of ALLOWED"""
    try:
        return OnStop(text.strip().lower())
    except ValueError as e:
        raise exception.InvalidExtraSpec(
            names.ON_STOP, text, "it does not say whether a stopped instance has its GPUs", ALLOWED
        ) from e
