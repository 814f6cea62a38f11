# SPDX-License-Identifier: Apache-2.0
"""All servers and compute nodes of a cloud, with the fields that commands read.

openstacksdk takes milliseconds for each server of a list, and another one at each look at its
flavor: a minute for the servers of a thousand hosts. The fields have openstacksdk's names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib import parse

from openstack import exceptions as sdk_exc

# With flavors in full (2.47), and with the servers of cells that do not answer (2.69)
_SERVERS = "2.69"
# With uuids (2.53). From 2.88 on Nova asks each nova-compute for its uptime, one after the other,
# and waits a minute for one that hangs, unless its host has reported that.
_NODES = "2.53"
_OF_SERVER = {
    "id": "id",
    "name": "name",
    "status": "status",
    "project_id": "tenant_id",
    "task_state": "OS-EXT-STS:task_state",
    "compute_host": "OS-EXT-SRV-ATTR:host",
    "hypervisor_hostname": "OS-EXT-SRV-ATTR:hypervisor_hostname",
    "reservation_id": "OS-EXT-SRV-ATTR:reservation_id",
    "availability_zone": "OS-EXT-AZ:availability_zone",
    "is_locked": "locked",
    "metadata": "metadata",
    "fault": "fault",
    "created_at": "created",
    "updated_at": "updated",
    "launched_at": "OS-SRV-USG:launched_at",
}
_OF_NODE = {
    "id": "id",
    "name": "hypervisor_hostname",
    "state": "state",
    "status": "status",
    "service_details": "service",
}
_OF_FLAVOR = ("vcpus", "ram", "disk", "ephemeral", "swap", "extra_specs")


class Record(dict[str, Any]):
    """A record of Nova's whose fields are attributes as well."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def servers(compute: Any, *, details: bool, all_projects: bool) -> Iterator[Record]:
    """Yield the servers, as openstacksdk's method ``servers`` does.

    :raises SDKException: if Nova refuses it; a caller needs :func:`osc_gpu.rest.clean_refusals`
    """
    path = "/servers/detail" if details else "/servers"
    query = {"all_tenants": "True"} if all_projects else {}
    return map(_server, _listed(compute, path, "servers", query, _SERVERS))


def nodes(compute: Any) -> Iterator[Record]:
    """Yield the compute nodes; otherwise as :func:`servers`."""
    for raw in _listed(compute, "/os-hypervisors/detail", "hypervisors", {}, _NODES):
        yield _record(raw, _OF_NODE)


def _listed(
    compute: Any, path: str, noun: str, query: dict[str, str], version: str
) -> Iterator[Mapping[str, Any]]:
    more = True
    while more:
        url = f"{path}?{parse.urlencode(query)}"
        answer = compute.get(url, microversion=version)
        sdk_exc.raise_from_response(answer)
        page = answer.json()
        yield from page[noun]
        # The link itself may lead to an address that only Nova's own network has.
        more = any(link["rel"] == "next" for link in page.get(f"{noun}_links", ()))
        if more:
            query = {**query, "marker": page[noun][-1]["id"]}


def _record(raw: Mapping[str, Any], fields: Mapping[str, str]) -> Record:
    return Record({name: raw.get(key) for name, key in fields.items()})


def _server(raw: Mapping[str, Any]) -> Record:
    """Return a server; a cell that does not answer leaves fields without values."""
    server = _record(raw, _OF_SERVER)
    image, flavor = raw.get("image"), raw.get("flavor")
    server["image"] = Record(id=image["id"]) if image else None
    server["flavor"] = None
    if flavor:
        fields = {name: flavor.get(name) for name in _OF_FLAVOR}
        server["flavor"] = Record(fields, name=flavor.get("original_name"))
    return server
