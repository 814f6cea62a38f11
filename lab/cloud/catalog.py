# SPDX-License-Identifier: Apache-2.0
"""The first content of a new cloud: endpoints, the role that Nova needs, a user, an image."""

from __future__ import annotations

import pathlib

from lab.cloud import rest, settings
from lab.vm import GUEST_COMMAND_LINE

IMAGE = "busybox"
# What an instance takes besides GPUs, by the names of Nova's limits. Without limits of their own a
# refusal for GPUs would name these too.
_UNLIMITED = ("servers", "class:VCPU", "class:MEMORY_MB", "class:DISK_GB")
_SERVICES = {
    "nova-api": ("nova", "compute", "/v2.1"),
    "placement": ("placement", "placement", ""),
    "glance": ("glance", "image", ""),
    "neutron": ("neutron", "network", ""),
}


def fill(lab: settings.Lab, client: rest.Client) -> None:
    """Create all endpoints except Keystone's, which exists, and the user and project demo."""
    for service, (name, kind, path) in _SERVICES.items():
        body = {"service": {"name": name, "type": kind}}
        identifier = client.post("keystone", "/v3/services", body)["service"]["id"]
        if kind == "compute":
            _limit_nothing(client, identifier)
        for interface in ("public", "internal"):
            endpoint = {
                "interface": interface,
                "region_id": settings.REGION,
                "service_id": identifier,
                "url": lab.url(service) + path,
            }
            client.post("keystone", "/v3/endpoints", {"endpoint": endpoint})
    if not client.get("keystone", "/v3/roles?name=service")["roles"]:
        client.post("keystone", "/v3/roles", {"role": {"name": "service"}})
    _grant(client, settings.ADMIN, "service")
    project = {"name": settings.MEMBER}
    client.post("keystone", "/v3/projects", {"project": project})
    user = {"name": settings.MEMBER, "password": lab.password}
    client.post("keystone", "/v3/users", {"user": user})
    _grant(client, settings.MEMBER, "member")


def _limit_nothing(client: rest.Client, service: str) -> None:
    limits = [
        {
            "service_id": service,
            "region_id": settings.REGION,
            "resource_name": name,
            "default_limit": -1,
        }
        for name in _UNLIMITED
    ]
    client.post("keystone", "/v3/registered_limits", {"registered_limits": limits})


def _grant(client: rest.Client, user: str, role: str) -> None:
    """Grant *role* to *user* in the project that has the user's name."""

    def named(path: str, name: str) -> str:
        (entry,) = client.get("keystone", f"/v3/{path}?name={name}")[path]
        return str(entry["id"])

    path = f"/v3/projects/{named('projects', user)}/users/{named('users', user)}"
    client.request("keystone", "PUT", f"{path}/roles/{named('roles', role)}")


def add_image(client: rest.Client, path: pathlib.Path) -> None:
    """Upload the disk of guests in the file *path* as an image."""
    _upload(client, path.read_bytes(), name=IMAGE)


def add_booted_image(client: rest.Client, kernel: pathlib.Path, initramfs: pathlib.Path) -> None:
    """Upload an image for KVM: a kernel, an initramfs with all that a guest has, and a disk."""
    form = {"disk_format": "aki", "container_format": "aki"}
    kernel_id = _upload(client, kernel.read_bytes(), name=f"{IMAGE}-kernel", **form)
    form = {"disk_format": "ari", "container_format": "ari"}
    ramdisk_id = _upload(client, initramfs.read_bytes(), name=f"{IMAGE}-initramfs", **form)
    properties = {"os_command_line": GUEST_COMMAND_LINE, "kernel_id": kernel_id}
    _upload(client, bytes(1 << 20), name=IMAGE, ramdisk_id=ramdisk_id, **properties)


def _upload(client: rest.Client, content: bytes, **properties: str) -> str:
    image = {
        "disk_format": "raw",
        "container_format": "bare",
        "visibility": "public",
        **properties,
    }
    identifier = str(client.post("glance", "/v2/images", image)["id"])
    client.request("glance", "PUT", f"/v2/images/{identifier}/file", content)
    return identifier
