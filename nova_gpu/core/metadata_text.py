# SPDX-License-Identifier: Apache-2.0
"""Text of any length in an instance's ``system_metadata``, over several keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping

# The limit of Nova's database for each value
_LENGTH = 255


def split(prefix: str, text: str) -> dict[str, str]:
    """Return the items that hold *text*: each key is *prefix* and a number from 0."""
    pieces = (text[begin : begin + _LENGTH] for begin in range(0, len(text), _LENGTH))
    return {f"{prefix}{number}": piece for number, piece in enumerate(pieces)}


def keys(prefix: str, metadata: Iterable[str]) -> list[str]:
    """Return those keys of *metadata* that :func:`split` makes, in the order of the text."""
    own = (key for key in metadata if key.startswith(prefix))
    return sorted(own, key=lambda key: (len(key), key))


def joined(prefix: str, metadata: Mapping[str, str]) -> str:
    """Return the text that :func:`split` has put into *metadata*, empty if there is none."""
    return "".join(metadata[key] for key in keys(prefix, metadata))


def store(prefix: str, items: Mapping[str, str], metadata: MutableMapping[str, str]) -> bool:
    """Store *items* as the text in *metadata*, which :func:`split` has made.

    Return whether something has changed.
    """
    before = {key: metadata[key] for key in keys(prefix, metadata)}
    for key in before.keys() - items.keys():
        del metadata[key]
    metadata.update(items)
    return before != items
