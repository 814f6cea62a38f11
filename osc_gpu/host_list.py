# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu host list``: the hosts with GPUs, with the sums of their groups."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nova_gpu.core import names
from osc_gpu import base_command, closed_hosts, group_list, hosts, rest
from osc_gpu.group_list import Provider

_COLUMNS = ("Host", "State", "Architectures", "Total", "Used", "Reserved", "Free")
_NOT_WHOLE = "no host has whole GPUs; openstack gpu group list has the vGPUs"


class ListHosts(base_command.Lister):
    """List the hosts with whole GPUs, their numbers, and whether instances can start there.

    New instances do not get reserved GPUs; see openstack gpu group list --help. For administrators.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        group_list.add_filters(parser, "hosts")
        return parser

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[tuple[Any, ...]]]:
        connection = rest.CachedConnection(self.connection(parsed_args))
        providers = group_list.read(connection)
        every = [
            provider for provider in providers if provider.resource_class == names.RESOURCE_CLASS
        ]
        whole = group_list.of_architecture(every, parsed_args.arch)
        if not whole:
            self.say(_NOT_WHOLE if providers else group_list.NONE)
        nodes = hosts.compute_nodes(connection)
        closed = {
            nodes[root][0]: reason
            for root, reason in closed_hosts.to_some(connection).items()
            if root in nodes
        }
        rows = _host_rows(whole, closed)
        return _COLUMNS, (row for row in rows if row[-1] or not parsed_args.free)


def _host_rows(
    providers: Iterable[Provider], closed: Mapping[str, str]
) -> Iterator[tuple[Any, ...]]:
    """Yield a row of the table for each host."""
    for host, of_host in itertools.groupby(providers, key=lambda provider: provider.host):
        listed = list(of_host)
        groups = [provider.group for provider in listed]
        yield (
            host,
            "; ".join(filter(None, (listed[0].unusable or "up", closed.get(host)))),
            ", ".join(sorted({provider.architecture for provider in listed})),
            sum(group.total for group in groups),
            sum(group.used for group in groups),
            sum(group.reserved for group in groups),
            sum(group.free for group in groups),
        )
