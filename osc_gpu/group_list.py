# SPDX-License-Identifier: Apache-2.0
"""The groups of GPUs in Placement, of all hosts or of one instance.

``openstack gpu group list`` prints them; :mod:`osc_gpu.host_list` their sums.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from osc_lib import exceptions

from nova_gpu.core import names
from nova_gpu.core.model import GroupKey
from nova_gpu.core.scheduling.capacity import Group
from osc_gpu import base_command, hosts, rest

_UNKNOWN = "unknown"
NONE = "no host has reported GPUs; nova-gpu list on a compute host says what it offers, and why not"
_OF_GROUPS = (
    *("Host", "Product", "Model", "Architecture", "Mode"),
    *("Total", "Used", "Reserved", "Free"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Provider:
    """One class of GPUs, whole or vGPUs, of one resource provider in Placement.

    ``host`` is the compute node's name, and ``unusable`` why no instance can start there, ``None``
    if one can. ``key`` is what the provider's name says: ``None`` if nova-gpu did not make the
    provider. ``group`` has its counts and traits.
    """

    uuid: str
    host: str
    unusable: str | None
    key: GroupKey | None
    resource_class: str
    group: Group

    @property
    def product(self) -> str:
        """The vendor and product id, such as ``10de:1091``, or ``unknown``.

        The ids of a board follow if the provider has only boards of that kind.
        """
        return self.key.product if self.key else _UNKNOWN

    @property
    def mode(self) -> str:
        if self.key is None:
            return _UNKNOWN
        mode = str(self.key.mode)
        return f"{mode} {self.key.vgpu_type}" if self.key.vgpu_type else mode

    @property
    def architecture(self) -> str:
        return self._trait_value(names.TRAIT_ARCHITECTURE)

    @property
    def model(self) -> str:
        """The model in the spelling of a flavor's ``gpu:model``, or ``unknown``."""
        return self._trait_value(names.TRAIT_MODEL)

    def _trait_value(self, prefix: str) -> str:
        return ", ".join(sorted(names.known_values(prefix, self.group.traits))) or _UNKNOWN


def read(connection: Any, *, reserved: bool = True, on_host: str | None = None) -> list[Provider]:
    """Return the groups of all hosts, or of one, sorted by host and product.

    :param reserved: whether totals include reserved GPUs, which takes a request for each group of a
        host with an older nova-gpu; otherwise only groups that :func:`osc_gpu.hosts.summaries`
        lacks take requests
    :param on_host: the name of a compute node whose groups alone are read
    """
    nodes = hosts.compute_nodes(connection)
    listed = hosts.gpu_providers(connection)
    summaries = hosts.summaries(connection, {provider["root_provider_uuid"] for provider in listed})
    providers: list[Provider] = []
    for provider in listed:
        root = provider["root_provider_uuid"]
        node = nodes.get(root) or hosts.unknown_node(connection, root)
        if on_host not in (None, node[0]):
            continue
        summary = summaries.get(provider["uuid"])
        providers += _providers(connection, provider, *node, summary, math.inf if reserved else 0)
    return sorted(providers, key=lambda provider: (provider.host, provider.product, provider.mode))


def of_instance(connection: Any, uuid: str) -> list[tuple[Provider, int]]:
    """Return the groups that an instance has GPUs of, each with the number of these GPUs.

    :param uuid: of the instance, or of a migration that holds GPUs on its source
    """
    uses: list[tuple[Provider, int]] = []
    allocations = rest.placement(connection, f"/allocations/{uuid}")["allocations"]
    held = {
        provider: allocation["resources"]
        for provider, allocation in allocations.items()
        if allocation["resources"].keys() & set(names.RESOURCE_CLASSES)
    }
    for provider, resources in held.items():
        described = rest.placement(connection, f"/resource_providers/{provider}")
        host, _ = hosts.unknown_node(connection, described["root_provider_uuid"])
        uses += [
            (provider, resources[provider.resource_class])
            for provider in _providers(connection, described, host, None, None, 0)
            if provider.resource_class in resources
        ]
    return uses


def _providers(
    connection: Any,
    described: Mapping[str, str],
    host: str,
    unusable: str | None,
    summary: Mapping[str, Any] | None,
    most: float,
) -> Iterator[Provider]:
    """Yield a Provider for each class of GPUs that a resource provider has.

    Yield nothing if the resource provider no longer exists.
    """
    uuid, key = described["uuid"], names.parse_provider_name(host, described["name"])
    for resource_class, group in hosts.groups_of(connection, uuid, summary, most).items():
        yield Provider(uuid, host, unusable, key, resource_class, group)


class ListGroups(base_command.Lister):
    """List the groups of GPUs: cards of one product in one mode on one host.

    The mode is how guests have them: pci (VMs have whole cards), lxc (containers have whole cards)
    or vgpu with a type (guests have parts of cards).
    New instances do not get reserved cards: these have failed, are in quarantine, or are used by
    guests that are not Nova's. On the host nova-gpu list says which, and why. For administrators.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--host", metavar="<host>", help="Show only the groups of this compute node"
        )
        add_filters(parser, "groups")
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[tuple[Any, ...]]]:
        connection = self.connection(parsed_args)
        providers = read(connection, on_host=parsed_args.host)
        if not providers:
            refuse_unknown(connection, parsed_args.host)
            self.say(NONE)
        return _OF_GROUPS, (
            (
                *(
                    provider.host,
                    provider.product,
                    provider.model,
                    provider.architecture,
                    provider.mode,
                ),
                *(
                    provider.group.total,
                    provider.group.used,
                    provider.group.reserved,
                    provider.group.free,
                ),
            )
            for provider in of_architecture(providers, parsed_args.arch)
            if provider.group.free or not parsed_args.free
        )


def add_filters(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the options that choose which of the listed groups or hosts are shown."""
    parser.add_argument("--free", action="store_true", help=f"Show only {what} with free GPUs")
    parser.add_argument(
        "--arch", metavar="<name>", help=f"Show only {what} with GPUs of this architecture"
    )


def of_architecture(providers: Sequence[Provider], name: str | None) -> Sequence[Provider]:
    """Return those of *providers* with the architecture *name*, all if it is ``None``.

    :raises CommandError: if there are providers and none has it, with the architectures there are
    """
    if name is None or not providers:
        return providers
    chosen = [
        provider for provider in providers if names.word(name) in provider.architecture.split(", ")
    ]
    if not chosen:
        there = ", ".join(sorted({provider.architecture for provider in providers}))
        raise exceptions.CommandError(
            f"none of these GPUs has the architecture {name}; there are: {there}"
        )
    return chosen


def refuse_unknown(connection: Any, host: str | None) -> None:
    """Refuse the value of ``--host`` that a command found nothing of, if it is no host with GPUs.

    :raises CommandError: with the most similar host
    """
    if host is None:
        return
    there = sorted({provider.host for provider in read(connection, reserved=False)})
    if host not in there:
        raise exceptions.CommandError(
            f"Placement has no GPUs of a host {host}; {_hint(host, there)}"
        )


def _hint(host: str, there: Sequence[str]) -> str:
    if alike := difflib.get_close_matches(host, there, n=1):
        return f"did you mean {alike[0]}?"
    if not there:
        return NONE
    return f"openstack gpu group list shows the {len(there)} hosts with GPUs"
