# SPDX-License-Identifier: Apache-2.0
"""Flavors as Nova's API shows them to whoever asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from openstack import exceptions as sdk_exc

from nova_gpu.core import exception
from nova_gpu.core.flavor import request, summary, validation
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.osc import rest

NOTHING = "no GPU"
# From this version on the API judges values. The proxy's own methods speak an older one.
_CHECKED = "2.86"


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


def write(connection: Any, flavor: Any, specs: Mapping[str, str]) -> None:
    """Sets extra specs of *flavor*, within :func:`nova_gpu.osc.rest.clean_refusals`."""
    answer = connection.compute.post(
        f"/flavors/{flavor.id}/os-extra_specs",
        json={"extra_specs": dict(specs)},
        microversion=_CHECKED,
    )
    sdk_exc.raise_from_response(answer)


def remove(connection: Any, flavor: Any, key: str) -> None:
    """Removes an extra spec of *flavor*, as :func:`write`."""
    answer = connection.compute.delete(f"/flavors/{flavor.id}/os-extra_specs/{key}")
    if answer.status_code != 404:
        sdk_exc.raise_from_response(answer)


def request_of(flavor: Any) -> FlavorRequest:
    """What *flavor* asks for, openstacksdk's by itself or of a server."""
    return request.of(flavor.extra_specs or {})


def in_words(asked: FlavorRequest) -> str:
    """:raises InvalidExtraSpec: where what is asked for cannot be understood"""
    return " and ".join(map(summary.all_of, asked.requests))


def asked_for(asked: FlavorRequest) -> str:
    """What is asked for, in words, or what is wrong with that"""
    try:
        if words := in_words(asked):
            return words
    except exception.InvalidExtraSpec:
        pass
    return "; ".join(validation.mistakes(asked)) or NOTHING
