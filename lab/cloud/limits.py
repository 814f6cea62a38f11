# SPDX-License-Identifier: Apache-2.0
"""Demonstrates quota for GPUs: limits in Keystone, and instances that they permit or refuse."""

from __future__ import annotations

import functools

from lab.cloud import rest, servers, settings, shown, steps

_COUNTED, _UNCOUNTED = "quota-counted", "quota-words-alone"
_CLASS = "class:PGPU"
_LIMIT = 3
_COLUMNS = ["-c", "name", "-c", "properties"]


def show(lab: settings.Lab) -> None:
    """Run the demonstration in a cloud that is up, and delete what it created."""
    client = rest.Client(lab)
    forget(client)
    try:
        _show(lab, client)
    finally:
        forget(client)


def _show(lab: settings.Lab, client: rest.Client) -> None:
    admin, member = settings.ADMIN, settings.MEMBER
    openstack = functools.partial(shown.openstack, lab)

    steps.say(f"\nA limit of {_LIMIT} GPUs for the project {member}, none for others\n")
    words = ["--service", "nova", "--region", settings.REGION, _CLASS]
    only = ["-c", "resource_name", "-c", "default_limit"]
    openstack(admin, "registered", "limit", "create", "--default-limit", "0", *words, *only)
    of_project = ["--project", member, "--resource-limit", str(_LIMIT)]
    only = ["-c", "resource_name", "-c", "resource_limit"]
    openstack(admin, "limit", "create", *of_project, *words, *only)

    steps.say("\nA flavor that is counted, and one that has the words alone\n")
    words = ["--gpus", "2", "--hypervisor", "LXC", *_COLUMNS]
    openstack(admin, "gpu", "flavor", "create", _COUNTED, *shown.SIZE, *words)
    words = ["--property", "gpus== 1", *_COLUMNS]
    openstack(admin, "flavor", "create", _UNCOUNTED, *shown.SIZE, *words)
    openstack(admin, "gpu", "capacity", _COUNTED)
    openstack(member, "gpu", "capacity", _COUNTED, succeeds=False)

    steps.say("\nTwo GPUs of three, two more, and one that is not counted beforehand\n")
    shown.boot(lab, "quota-first", _COUNTED)
    refusal = shown.boot(lab, "quota-second", _COUNTED, succeeds=False)
    if _CLASS not in refusal:
        raise steps.Failed(f"the refusal of the second instance does not name {_CLASS}: {refusal}")
    shown.boot(lab, "quota-third", _UNCOUNTED)
    openstack(admin, "gpu", "capacity", _COUNTED)
    used = servers.usage(client)
    if used != 3:
        raise steps.Failed(f"Placement counts {used} GPUs in use, not 3")


def forget(client: rest.Client) -> None:
    """Delete the instances, flavors and limits that :func:`show` creates."""
    servers.delete_all(client, "quota-")
    servers.delete_flavors(client, (_COUNTED, _UNCOUNTED))
    # Keystone does not delete a registered limit while projects have limits of it.
    for path in ("limits", "registered_limits"):
        for limit in client.get("keystone", f"/v3/{path}?resource_name={_CLASS}")[path]:
            client.request("keystone", "DELETE", f"/v3/{path}/{limit['id']}")
