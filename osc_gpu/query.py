# SPDX-License-Identifier: Apache-2.0
"""What the scheduler would ask Placement for one instance of a flavor, made by Nova's own code."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Collection, Mapping
from typing import Any
from urllib import parse

from osc_lib import exceptions

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import query, request_group, summary
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.flavor.request_group import GroupRequest
from osc_gpu import rest


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """A flavor's own fields, in Nova's units: MiB of memory and swap, GiB of disk."""

    vcpus: int
    ram: int
    disk: int
    ephemeral: int
    swap: int

    @classmethod
    def of(cls, flavor: Any, *, boots_from_volume: bool = False) -> Size:
        """:param flavor: openstacksdk's, by itself or of a server"""
        return cls(
            vcpus=flavor.vcpus,
            ram=flavor.ram,
            disk=0 if boots_from_volume else flavor.disk,
            ephemeral=flavor.ephemeral or 0,
            swap=int(flavor.swap or 0),
        )


class Unservable(exceptions.CommandError):
    """A flavor of which no instance is to be had, whatever hosts have free."""


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """A query of Placement's. ``amounts`` are those of the compute node itself, by resource class.
    ``groups`` are those of ``resource_class``: of whole cards, where the flavor asks for any."""

    text: str
    resource_class: str
    groups: tuple[GroupRequest, ...]
    amounts: Mapping[str, int]
    isolate: bool


def known_traits(connection: Any) -> Collection[str]:
    """The GPU traits that some provider has now."""
    url = f"/traits?name=startswith:{names.TRAIT_GPU}&associated=true"
    traits: list[str] = rest.placement(connection, url)["traits"]
    return traits


def placement_query(connection: Any, size: Size, asked: FlavorRequest) -> Query:
    """The query for one instance of a flavor.

    :param connection: asked for traits where the flavor cannot be spelled out without them
    :raises Unservable: for a flavor that asks for no GPU, or that the scheduler would refuse
    """
    try:
        spelled_out = dict(asked.extra_specs)
        for each in asked.requests:
            known = known_traits(connection) if query.needs_known(each) else ()
            told = query.extra_specs(spelled_out, each, known)
            if told is None:
                raise Unservable(f"no {summary.kind(each, 1)} of any host satisfies the flavor")
            spelled_out = told
        groups = _groups(spelled_out)
    except exception.InvalidExtraSpec as e:
        raise Unservable(str(e)) from e
    if groups is None:
        raise Unservable(
            f"the flavor asks for no GPU: neither {names.GPUS}, {names.VGPUS} nor "
            f"resources:{names.RESOURCE_CLASS} is among its properties"
        )
    text, amounts = _needed(size, frozenset(spelled_out.items()))
    return Query(text, *groups, amounts, asked.is_isolated)


def amounts(size: Size, asked: FlavorRequest) -> Mapping[str, int]:
    """Return what one instance takes of the compute node itself, by resource class."""
    return _needed(size, frozenset(asked.extra_specs.items()))[1]


def _groups(specs: Mapping[str, str]) -> tuple[str, tuple[GroupRequest, ...]] | None:
    for resource_class in names.RESOURCE_CLASSES:
        found = request_group.parse(specs, resource_class).values()
        if wanted := tuple(group for group in found if group.count):
            return resource_class, wanted
    return None


@functools.lru_cache(maxsize=1024)
def _needed(size: Size, specs: frozenset[tuple[str, str]]) -> tuple[str, Mapping[str, int]]:
    """What Nova makes of the flavor: the query, and the amounts of the compute node itself."""
    # Only now: it takes a second, and other commands of the client have no use for it.
    import os_traits
    from nova import objects
    from nova.scheduler import utils

    objects.register_all()
    flavor = objects.Flavor(
        vcpus=size.vcpus,
        memory_mb=size.ram,
        root_gb=size.disk,
        ephemeral_gb=size.ephemeral,
        swap=size.swap,
        extra_specs=dict(specs),
    )
    spec = objects.RequestSpec(
        flavor=flavor,
        image=objects.ImageMeta(properties=objects.ImageMetaProps()),
        is_bfv=False,
        requested_resources=[],
    )
    spec.root_forbidden.add(os_traits.COMPUTE_STATUS_DISABLED)  # as Nova's own request filter
    needed = utils.ResourceRequest.from_request_spec(spec)
    amounts = dict(needed.get_request_group(None).resources)
    for resource_class in names.RESOURCE_CLASSES:
        amounts.pop(resource_class, None)
    # Nova's limit is on what one request may look at, and this is about all hosts.
    pairs = [pair for pair in parse.parse_qsl(needed.to_querystring()) if pair[0] != "limit"]
    return parse.urlencode(pairs), types.MappingProxyType(amounts)
