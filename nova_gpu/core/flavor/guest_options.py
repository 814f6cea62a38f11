# SPDX-License-Identifier: Apache-2.0
"""What a flavor says of how the guest gets its GPUs, not of which."""

from __future__ import annotations

from collections.abc import Mapping

from nova_gpu.core import exception, names

ALLOWED_SWITCH = "true or false"

# What Nova's own switches in flavors take (oslo.utils' strutils.bool_from_string).
_TRUE = frozenset({"1", "t", "true", "on", "y", "yes"})
_FALSE = frozenset({"0", "f", "false", "off", "n", "no"})


def option_rom(extra_specs: Mapping[str, str]) -> bool:
    """Whether the guest sees the option ROMs of its GPUs, as it does unless the flavor says no.

    :raises InvalidExtraSpec: where that is neither true nor false
    """
    text = extra_specs.get(names.OPTION_ROM, "true")
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise exception.InvalidExtraSpec(
            names.OPTION_ROM, text, "it is neither true nor false", ALLOWED_SWITCH
        )
    return word in _TRUE
