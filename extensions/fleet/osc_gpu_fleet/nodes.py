# SPDX-License-Identifier: Apache-2.0
"""The compute nodes of the cloud, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from osc_gpu import hosts, rest


def by_name(connection: Any) -> Mapping[str, str]:
    """Return the uuid of each compute node by the node's name."""
    return {node.name: node.id for node in hosts.listed_nodes(connection)}


def up(connection: Any) -> frozenset[str]:
    """Return the names of the nodes whose compute service is up, enabled or disabled."""
    return frozenset(node.name for node in hosts.listed_nodes(connection) if node.state == "up")


def zones(connection: Any) -> Mapping[str, str]:
    """Return the availability zone of each node, by the node's name."""
    with rest.clean_refusals("Nova"):
        listed = connection.compute.services(binary="nova-compute")
        of_service = {service.host: service.availability_zone for service in listed}
    return {node: of_service.get(host, "") for node, host in hosts.services(connection).items()}
