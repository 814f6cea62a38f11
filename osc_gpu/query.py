# SPDX-License-Identifier: Apache-2.0
"""The scheduler's query to Placement for one instance of a flavor, as Nova makes it."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from osc_lib import exceptions

from nova_gpu.core import exception, names
from nova_gpu.core.flavor import query, request_group, summary
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.flavor.request_group import GroupRequest
from osc_gpu import resource_request, rest
from osc_gpu.resource_request import Size


class Unservable(exceptions.CommandError):
    """A flavor that requests no GPU, or of which no host can ever have an instance."""


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """A query for the allocation candidates of one instance.

    ``text`` is the query string. ``groups`` are its request groups with ``resource_class``, which
    is that of whole cards if the flavor requests any, and ``other`` those with the other class of
    GPUs, mostly none. ``amounts`` are the other resources, which
    the compute node itself provides, by class. ``isolate``: different providers must serve the
    groups.
    """

    text: str
    resource_class: str
    groups: tuple[GroupRequest, ...]
    amounts: Mapping[str, int]
    isolate: bool
    other: Mapping[str, tuple[GroupRequest, ...]]

    def by_class(self) -> Iterator[Query]:
        """Yield the query itself, and one that has the groups of the other class of GPUs as its."""
        yield self
        for resource_class, groups in self.other.items():
            yield dataclasses.replace(self, resource_class=resource_class, groups=groups)


def known_traits(connection: Any) -> Collection[str]:
    """Return the GPU traits that at least one provider has now."""
    url = f"/traits?name=startswith:{names.TRAIT_GPU}&associated=true"
    traits: list[str] = rest.placement(connection, url)["traits"]
    return traits


def model_classes(connection: Any) -> frozenset[str]:
    """Return the resource classes by which hosts count GPUs of a model, or have counted them."""
    classes = rest.placement(connection, "/resource_classes")["resource_classes"]
    return frozenset(filter(names.is_model_class, (item["name"] for item in classes)))


def placement_query(connection: Any, size: Size, flavor: FlavorRequest) -> Query:
    """Return the query for one instance of a flavor.

    :param connection: read for the existing traits if a condition of the flavor, such as a part
        of a name, stands for several of them
    :raises Unservable: for a flavor that requests no GPU, or that the scheduler would refuse
    """
    try:
        spelled_out = dict(flavor.extra_specs)
        for request in flavor.requests:
            known = known_traits(connection) if query.needs_known(request) else ()
            extra_specs = query.extra_specs(spelled_out, request, known)
            if extra_specs is None:
                raise Unservable(f"no {summary.kind(request, 1)} of any host satisfies the flavor")
            spelled_out = extra_specs
        groups = _groups(spelled_out)
    except exception.InvalidExtraSpec as e:
        raise Unservable(str(e)) from e
    if not groups:
        raise Unservable(
            f"the flavor asks for no GPU: neither {names.GPUS}, {names.VGPUS} nor "
            f"resources:{names.RESOURCE_CLASS} is among its properties"
        )
    text, amounts = _needed(size, frozenset(spelled_out.items()))
    (first, *others) = groups.items()
    return Query(text, *first, amounts, flavor.is_isolated, dict(others))


def amounts(size: Size, flavor: FlavorRequest) -> Mapping[str, int]:
    """Return the resources other than GPUs that one instance takes of its node, by class."""
    return _needed(size, frozenset(flavor.extra_specs.items()))[1]


def _groups(specs: Mapping[str, str]) -> Mapping[str, tuple[GroupRequest, ...]]:
    """Return the request groups by the class of GPUs, without classes that have none."""
    groups = {
        resource_class: tuple(
            group for group in request_group.parse(specs, resource_class).values() if group.count
        )
        for resource_class in names.RESOURCE_CLASSES
    }
    return {resource_class: wanted for resource_class, wanted in groups.items() if wanted}


@functools.lru_cache(maxsize=1024)
def _needed(size: Size, specs: frozenset[tuple[str, str]]) -> tuple[str, Mapping[str, int]]:
    """Return the query string, and the amounts of resources other than GPUs, by class."""
    try:
        text, amounts = resource_request.make(size, dict(specs))
    except ValueError as error:
        raise Unservable(f"Nova cannot read the flavor's hw:cpu_* properties: {error}") from error
    own = {name: amount for name, amount in amounts.items() if not names.is_gpu_class(name)}
    return text, types.MappingProxyType(own)
