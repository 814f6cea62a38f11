# SPDX-License-Identifier: Apache-2.0
"""Sanitised text: what a tenant, or a service on a tenant's behalf, wrote, made safe to print."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any

# Nova's limit for a name, for an item of metadata and for the message of a fault
MOST = 255
# A line of ours that contains several of these
MOST_OF_A_LINE = 2000
_INSTEAD = "\N{REPLACEMENT CHARACTER}"


def printable(text: str, most: int = MOST) -> str:
    """Return *text* as one line without characters that control a terminal, a log or a page.

    Unicode's control, format (direction marks among them), surrogate and unassigned characters and
    its line and paragraph separators are replaced. White space, line feeds included, becomes a
    space.

    :param most: the maximum number of characters; a longer text is cut and ends in ``...``
    """
    # A text that is far too long is cut before its characters are examined.
    cut = f"{text[: most - 3]}..." if len(text) > most else text
    return cut if cut.isprintable() else "".join(map(_shown, cut))


def lines(text: str) -> str:
    """Return *text* with each line made :func:`printable`; the line feeds stay."""
    return "\n".join(printable(line, MOST_OF_A_LINE) for line in text.split("\n"))


def within(value: Any) -> Any:
    """Return *value*, built of JSON's types, with each string in it sanitised by :func:`lines`."""
    if isinstance(value, str):
        return lines(value)
    if isinstance(value, Mapping):
        return {within(key): within(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(within, value))
    return value


def _shown(character: str) -> str:
    if character.isprintable():
        return character
    is_space = character in "\t\n\r" or unicodedata.category(character) == "Zs"
    return " " if is_space else _INSTEAD
