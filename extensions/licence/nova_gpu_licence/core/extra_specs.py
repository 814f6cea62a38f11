# SPDX-License-Identifier: Apache-2.0
"""The extra spec by which a flavor chooses among settings of licences."""

from __future__ import annotations

import re

from nova_gpu.core import exception
from nova_gpu.core.flavor.declaration import ExtraSpec, Option

_ALLOWED = "at most 32 lower-case letters, digits and hyphens: vws"
_NAME = re.compile("[a-z0-9][a-z0-9-]{0,31}")


def _parse(key: str, text: str) -> str:
    """Return *text*, which is part of the name of a file with settings.

    :raises InvalidExtraSpec: if the value of *key* is not _ALLOWED
    """
    if not _NAME.fullmatch(text):
        reason = "it is no name of settings of a licence"
        raise exception.InvalidExtraSpec(key, text, reason, _ALLOWED)
    return text


LICENCE = ExtraSpec(
    "gpu:licence",
    "Which settings of NVIDIA's licence the guest gets: ``vws`` for the operator's "
    "``<project>.vws.conf`` or ``default.vws.conf`` (``[gpu]vgpu_licences``).",
    _ALLOWED,
    _parse,
    option=Option("--licence", "Settings of NVIDIA's licence for the guest (vws, ...)", "<name>"),
)
WORDS = (LICENCE,)
