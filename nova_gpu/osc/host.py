# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu host list``: the hosts with whole GPUs."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nova_gpu.core import names
from nova_gpu.osc import asking, hosts, providers, rest
from nova_gpu.osc.planning import closed
from nova_gpu.osc.providers import Provider

_COLUMNS = ("Host", "State", "Architectures", "Total", "Used", "Reserved", "Free")


class ListHosts(asking.Lister):
    """List the hosts with whole GPUs, how many they have, and whether instances are started with
    them.

    For administrators.
    """

    def take_action(
        self, parsed_args: argparse.Namespace
    ) -> tuple[Sequence[str], Iterable[tuple[Any, ...]]]:
        connection = rest.Snapshot(self.connection(parsed_args))
        found = providers.read(connection)
        whole = [each for each in found if each.resource_class == names.RESOURCE_CLASS]
        nodes = hosts.compute_nodes(connection)
        kept = {
            nodes[root][0]: closed.in_words(until)
            for root, until in closed.kept_until(connection).items()
            if root in nodes
        }
        return _COLUMNS, _rows(whole, kept)


def _rows(found: Iterable[Provider], kept: Mapping[str, str]) -> Iterator[tuple[Any, ...]]:
    """:param found: by host
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
