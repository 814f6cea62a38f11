# SPDX-License-Identifier: Apache-2.0
"""What a new cloud has to know: its own services, the role Nova asks for, an image."""

from __future__ import annotations

import pathlib
from typing import Any

from tools.novalab import rest, settings

IMAGE = "busybox"
_SERVICES = {
    "nova-api": ("nova", "compute", "/v2.1"),
    "placement": ("placement", "placement", ""),
    "glance": ("glance", "image", ""),
    "neutron": ("neutron", "network", ""),
}


def fill(lab: settings.Lab, client: rest.Client) -> None:
    """The endpoints of all but Keystone, which has made its own."""
    for service, (name, kind, path) in _SERVICES.items():
        body = {"service": {"name": name, "type": kind}}
        identifier = client.post("keystone", "/v3/services", body)["service"]["id"]
        for interface in ("public", "internal"):
            endpoint = {
                "interface": interface,
                "region_id": settings.REGION,
                "service_id": identifier,
                "url": lab.url(service) + path,
            }
            client.post("keystone", "/v3/endpoints", {"endpoint": endpoint})
    _grant_service_role(client)


def _grant_service_role(client: rest.Client) -> None:
    def named(path: str, name: str) -> str:
        (found,) = client.get("keystone", f"/v3/{path}?name={name}")[path]
        return str(found["id"])

    if not client.get("keystone", "/v3/roles?name=service")["roles"]:
        client.post("keystone", "/v3/roles", {"role": {"name": "service"}})
    project, user, role = (
        named("projects", "admin"),
        named("users", "admin"),
        named("roles", "service"),
    )
    client.request("keystone", "PUT", f"/v3/projects/{project}/users/{user}/roles/{role}")


def add_image(client: rest.Client, path: pathlib.Path) -> str:
    """Uploads the guest's disk. Returns the image's id."""
    image: dict[str, Any] = {
        "name": IMAGE,
        "disk_format": "raw",
        "container_format": "bare",
        "visibility": "public",
    }
    identifier = str(client.post("glance", "/v2/images", image)["id"])
    client.request("glance", "PUT", f"/v2/images/{identifier}/file", path.read_bytes())
    return identifier
