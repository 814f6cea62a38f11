# SPDX-License-Identifier: Apache-2.0
"""Creates, shows and deletes instances and flavors of the lab through Nova's API."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lab.cloud import catalog, libvirtd, rest, services, steps

_TIMEOUT_S = 300.0
_GPU_NODE = re.compile(r"<char>(/dev/(?:nvidia\d+|dri/renderD\d+))</char>")


def flavor(client: rest.Client, name: str, extra_specs: Mapping[str, str]) -> str:
    """Create a flavor, deleting one with its name first, and return the id."""
    delete_flavors(client, [name])
    body = {"flavor": {"name": name, "vcpus": 1, "ram": 64, "disk": 1}}
    identifier = str(client.post("nova-api", "/v2.1/flavors", body)["flavor"]["id"])
    path = f"/v2.1/flavors/{identifier}/os-extra_specs"
    client.post("nova-api", path, {"extra_specs": dict(extra_specs)})
    return identifier


def delete_flavors(client: rest.Client, names: Collection[str]) -> None:
    for row in client.get("nova-api", "/v2.1/flavors?is_public=None")["flavors"]:
        if row["name"] in names:
            client.request("nova-api", "DELETE", f"/v2.1/flavors/{row['id']}")


def image(client: rest.Client) -> str:
    images = client.get("glance", f"/v2/images?name={catalog.IMAGE}")["images"]
    return str(images[0]["id"])


def show(client: rest.Client, server_id: str) -> Any:
    return client.get("nova-api", f"/v2.1/servers/{server_id}")["server"]


def wait_until_built(client: rest.Client, server_id: str) -> Any:
    """Wait until the instance is built or has failed, and return it."""
    deadline = time.monotonic() + _TIMEOUT_S
    while (server := show(client, server_id))["status"] == "BUILD":
        if time.monotonic() > deadline:
            raise steps.Failed(
                f"instance {server_id} is still being built after {_TIMEOUT_S:.0f} s"
            )
        time.sleep(0.2)
    return server


def delete(client: rest.Client, server_ids: Sequence[str]) -> None:
    """Delete the instances, and wait until Nova no longer knows them."""
    for server_id in server_ids:
        client.request("nova-api", "DELETE", f"/v2.1/servers/{server_id}")
    deadline = time.monotonic() + _TIMEOUT_S
    for server_id in server_ids:
        while exists(client, server_id):
            if time.monotonic() > deadline:
                raise steps.Failed(f"instance {server_id} is not deleted after {_TIMEOUT_S:.0f} s")
            time.sleep(0.1)


def exists(client: rest.Client, server_id: str) -> bool:
    try:
        show(client, server_id)
    except rest.RequestFailed as error:
        if error.status == 404:
            return False
        raise
    return True


def delete_all(client: rest.Client, prefix: str) -> None:
    """Delete the instances whose name begins with *prefix*, and wait for that."""
    servers = client.get("nova-api", "/v2.1/servers?all_tenants=1")["servers"]
    delete(client, [server["id"] for server in servers if server["name"].startswith(prefix)])


def domain(server: Any) -> str:
    """Return the name of the instance's domain in libvirt."""
    return str(server["OS-EXT-SRV-ATTR:instance_name"])


def gpu_nodes(lv: libvirtd.PrivateLibvirtd, name: str) -> list[str]:
    """Return the paths of the GPU nodes of the domain *name*, such as ``/dev/nvidia3``."""
    return sorted(_GPU_NODE.findall(lv.virsh("dumpxml", name)))


def usage(client: rest.Client) -> int:
    """Return how many GPUs of all hosts Placement counts as used."""
    total = 0
    for provider in services.gpu_providers(client):
        path = f"/resource_providers/{provider['uuid']}/usages"
        total += sum(client.get("placement", path)["usages"].values())
    return total


def error_of(server: Any) -> str:
    return str(server.get("fault", {}).get("message", "no fault"))
