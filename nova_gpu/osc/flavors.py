# SPDX-License-Identifier: Apache-2.0
"""Flavors as Nova's API shows them to whoever asks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nova_gpu.core import exception
from nova_gpu.core.flavor import mistakes, query, request, vgpu_request, wanted
from nova_gpu.osc import rest

NOTHING = "no GPU"


def read(connection: Any, named: Sequence[str] = ()) -> Iterator[Any]:
    """:param named: names or IDs; without any, all there are
    :raises CommandError: where there is none of that name
    """
    with rest.clean_refusals("Nova"):
        if not named:
            yield from connection.compute.flavors(
                details=True, is_public=None, get_extra_specs=True
            )
        for name in named:
            yield connection.compute.find_flavor(name, ignore_missing=False, get_extra_specs=True)


def requests(extra_specs: Mapping[str, str]) -> list[query.Request]:
    """What is asked for of whole cards and of parts.

    :raises InvalidExtraSpec: for a value that cannot be used, or two that contradict each other
    """
    asked = (request.parse(extra_specs), vgpu_request.parse(extra_specs))
    return [each for each in asked if each]


def in_words(asked: Iterable[query.Request]) -> str:
    return " and ".join(map(wanted.all_of, asked))


def asked_for(extra_specs: Mapping[str, str]) -> str:
    """What is asked for, in words, or what is wrong with that"""
    try:
        if words := in_words(requests(extra_specs)):
            return words
    except exception.InvalidExtraSpec:
        pass
    return "; ".join(mistakes.mistakes(extra_specs)) or NOTHING
