# SPDX-License-Identifier: Apache-2.0
"""The groups of GPUs as Placement has them, of all hosts or of one instance.

``openstack gpu group list``, and ``gpu host list``, which adds them up.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from osc_lib import exceptions

from nova_gpu.core import names
from nova_gpu.core.model import GroupKey
from nova_gpu.core.scheduling.capacity import Group
from nova_gpu.core.sets import published
from osc_gpu import asking, closed, hosts, rest

_UNKNOWN = "unknown"
_OF_GROUPS = (
    *("Host", "Product", "Model", "Architecture", "Mode"),
    *("Total", "Used", "Reserved", "Free"),
)
_OF_HOSTS = ("Host", "State", "Architectures", "Total", "Used", "Reserved", "Free")


@dataclasses.dataclass(frozen=True, slots=True)
class Provider:
    """A group of GPUs.

    ``host`` is the compute node's name, ``unusable`` why nothing is started there, ``key`` what the
    provider's name says: ``None`` of one that somebody else has made.
    """

    uuid: str
    host: str
    unusable: str | None
    key: GroupKey | None
    resource_class: str
    group: Group

    @property
    def product(self) -> str:
        """``10de:1091``."""
        return f"{self.key.vendor_id}:{self.key.product_id}" if self.key else _UNKNOWN

    @property
    def mode(self) -> str:
        if self.key is None:
            return _UNKNOWN
        mode = str(self.key.mode)
        return f"{mode} {self.key.vgpu_type}" if self.key.vgpu_type else mode

    @property
    def architecture(self) -> str:
        return self._said(names.TRAIT_ARCHITECTURE)

    @property
    def model(self) -> str:
        """The model in the form that ``gpu:model`` of a flavor is compared with."""
        return self._said(names.TRAIT_MODEL)

    def _said(self, prefix: str) -> str:
        return ", ".join(sorted(names.known_values(prefix, self.group.traits))) or _UNKNOWN


def read(connection: Any, *, reserved: bool = True) -> list[Provider]:
    """Return the groups of all hosts, by host and product.

    :param connection: an openstack.connection.Connection
    :param reserved: whether reserved GPUs count, which takes a request for each group. Without them
        a group's total is what is not reserved, and there is one only for each group on a node that
        has nothing left (:func:`osc_gpu.hosts.summaries`)
    :raises Refused: where Placement does not show them to the caller
    """
    nodes = hosts.compute_nodes(connection)
    listed = hosts.gpu_providers(connection)
    summaries = hosts.summaries(connection, {each["root_provider_uuid"] for each in listed})
    found: list[Provider] = []
    for each in listed:
        root = each["root_provider_uuid"]
        node = nodes.get(root) or hosts.nameless(connection, root)
        found += _providers(connection, each, *node, summaries.get(each["uuid"]), reserved)
    return sorted(found, key=lambda each: (each.host, each.product, each.mode))


def of_instance(connection: Any, uuid: str) -> list[tuple[Provider, int]]:
    """Return the providers that an instance or a move has allocations of, with the GPUs of each.

    :raises Refused: as :func:`read`
    """
    found: list[tuple[Provider, int]] = []
    allocations = rest.placement(connection, f"/allocations/{uuid}")["allocations"]
    held = {
        provider: allocation["resources"]
        for provider, allocation in allocations.items()
        if allocation["resources"].keys() & set(names.RESOURCE_CLASSES)
    }
    for provider, resources in held.items():
        described = rest.placement(connection, f"/resource_providers/{provider}")
        host, _ = hosts.nameless(connection, described["root_provider_uuid"])
        found += [
            (each, resources[each.resource_class])
            for each in _providers(connection, described, host, None, None)
            if each.resource_class in resources
        ]
    return found


def _providers(
    connection: Any,
    described: Mapping[str, str],
    host: str,
    unusable: str | None,
    summary: Mapping[str, Any] | None,
    reserved: bool = True,
) -> Iterator[Provider]:
    """Yield a Provider for each class of GPUs that the resource provider has.

    None where it is gone.

    :param summary: as :func:`osc_gpu.hosts.summaries` has it, which spares two requests, and
        all three where *reserved* GPUs do not count
    """
    get = functools.partial(rest.of_provider, connection, described["uuid"])
    counts = summary["resources"] if summary else {}
    if summary and not reserved:
        inventories = {
            each: {"total": counted["capacity"], "reserved": 0, "max_unit": None}
            for each, counted in counts.items()
        }
    else:
        inventories = get("inventories")
    there = [each for each in names.RESOURCE_CLASSES if each in inventories]
    if not there:
        return
    if summary:
        traits = frozenset(summary["traits"])
        usages = {each: counted["used"] for each, counted in counts.items()}
    else:
        traits, usages = frozenset(get("traits")), get("usages")
    key = names.parse_provider_name(host, described["name"])
    for each in there:
        own = inventories[each]
        used = usages.get(each, 0)
        group = Group(
            *(own["total"], own["reserved"], used, traits, published.board(traits)),
            max_unit=own["max_unit"],
        )
        yield Provider(described["uuid"], host, unusable, key, each, group)


class ListGroups(asking.Lister):
    """List the groups of GPUs: cards of one product in one mode on one host.

    Reserved cards are given to no new instance: they have failed, are in quarantine, or are used by
    guests that are not Nova's. On the host nova-gpu list says which, and why. For administrators.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--host", metavar="<host>", help="Show only the groups of this compute node"
        )
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[tuple[Any, ...]]]:
        found = read(self.connection(parsed_args))
        there = sorted({each.host for each in found})
        if parsed_args.host is not None and parsed_args.host not in there:
            raise exceptions.CommandError(
                f"Placement has no GPUs of a host {parsed_args.host}; "
                f"{_hint(parsed_args.host, there)}"
            )
        return _OF_GROUPS, (
            (
                *(each.host, each.product, each.model, each.architecture, each.mode),
                *(each.group.total, each.group.used, each.group.reserved, each.group.free),
            )
            for each in found
            if parsed_args.host in (None, each.host)
        )


def _hint(host: str, there: Sequence[str]) -> str:
    if alike := difflib.get_close_matches(host, there, n=1):
        return f"did you mean {alike[0]}?"
    if not there:
        return "nor of any other (openstack gpu host list)"
    return f"it has some of {len(there)} others, which openstack gpu host list names"


class ListHosts(asking.Lister):
    """List the hosts with whole GPUs, their numbers, and whether instances can start there.

    For administrators.
    """

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[tuple[Any, ...]]]:
        connection = rest.Snapshot(self.connection(parsed_args))
        found = read(connection)
        whole = [each for each in found if each.resource_class == names.RESOURCE_CLASS]
        nodes = hosts.compute_nodes(connection)
        kept = {
            nodes[root][0]: closed.in_words(until)
            for root, until in closed.kept_until(connection).items()
            if root in nodes
        }
        return _OF_HOSTS, _host_rows(whole, kept)


def _host_rows(found: Iterable[Provider], kept: Mapping[str, str]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the table.

    :param found: by host
    :param kept: which instances get no GPUs of some hosts, by host
    """
    for host, of_host in itertools.groupby(found, key=lambda each: each.host):
        listed = list(of_host)
        groups = [each.group for each in listed]
        yield (
            host,
            "; ".join(filter(None, (listed[0].unusable or "up", kept.get(host)))),
            ", ".join(sorted({each.architecture for each in listed})),
            sum(group.total for group in groups),
            sum(group.used for group in groups),
            sum(group.reserved for group in groups),
            sum(group.free for group in groups),
        )
