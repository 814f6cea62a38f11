# SPDX-License-Identifier: Apache-2.0
"""What the scheduler would ask Placement for one instance of a flavor, made by Nova's own code."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib import parse

from osc_lib import exceptions

from nova_gpu.core import exception, names, query, request
from nova_gpu.core.request_group import GroupRequest


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
    """``amounts`` are those of the compute node itself, by resource class."""

    text: str
    groups: tuple[GroupRequest, ...]
    amounts: Mapping[str, int]
    isolate: bool


def of(size: Size, specs: Mapping[str, str], known_traits: Callable[[], Collection[str]]) -> Query:
    """:param known_traits: asked where the flavor cannot be spelled out without them
    :raises Unservable: for a flavor that asks for no GPU, or that the scheduler would refuse
    """
    try:
        asked = request.parse(specs)
        if asked is None:
            raise Unservable(
                f"the flavor asks for no GPU: neither {names.GPUS} nor resources:"
                f"{names.RESOURCE_CLASS} is among its properties"
            )
        known = known_traits() if query.needs_known(asked) else ()
        spelled_out = query.extra_specs(specs, asked, known)
        if spelled_out is None:
            raise Unservable("no GPU that any host reports satisfies the flavor")
        groups = request.parse(spelled_out)
    except exception.InvalidExtraSpec as e:
        raise Unservable(str(e)) from e
    assert groups is not None
    wanted = _wanted(size, spelled_out)
    amounts = dict(wanted.get_request_group(None).resources)
    amounts.pop(names.RESOURCE_CLASS, None)
    # Nova's limit is on what one request may look at, and this is about all hosts.
    pairs = [pair for pair in parse.parse_qsl(wanted.to_querystring()) if pair[0] != "limit"]
    isolate = spelled_out.get("group_policy") == "isolate"
    return Query(parse.urlencode(pairs), groups.groups, amounts, isolate)


def _wanted(size: Size, specs: Mapping[str, str]) -> Any:
    """A nova.scheduler.utils.ResourceRequest"""
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
    return utils.ResourceRequest.from_request_spec(spec)
