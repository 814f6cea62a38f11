# SPDX-License-Identifier: Apache-2.0
"""Parser of JSON as RFC 8259 defines it, with numbers limited to 64-bit integers and doubles."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from typing import Any

# The maximum of an unsigned 64-bit integer, such as the kernel's own counters
_MOST = 2**64


def parse(
    text: str | bytes, pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Parse the JSON in *text*.

    Python's own parser accepts ``Infinity``, ``NaN`` and ``1e999``, which raise OverflowError where
    the value becomes an integer, and integers that no float can hold. This parser refuses both.

    :param pairs_hook: builds an object from its key and value pairs
    :raises ValueError: if *text* is not JSON, has such a number, or is nested too deeply
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    try:
        return _decoder(pairs_hook).decode(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


@functools.cache  # json.loads makes one for each text, in half of its time.
def _decoder(pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=pairs_hook,
        parse_constant=_refuse,
        parse_float=_float,
        parse_int=_int,
    )


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _refuse(text)
    return number


def _int(text: str) -> int:
    if len(text) > len(str(_MOST)) or abs(number := int(text)) >= _MOST:
        _refuse(text)
    return number


def _refuse(text: str) -> None:
    raise ValueError(f"{text[:40]} is not a JSON number of at most 64 bits")
