# SPDX-License-Identifier: Apache-2.0
"""Many instances: one after another, and more at once than there are GPUs."""

from __future__ import annotations

import collections
import concurrent.futures
import pathlib
import time

from lab.cloud import (
    cgroups,
    cloud,
    compute,
    leftovers,
    libvirtd,
    rest,
    servers,
    settings,
    steps,
)

_FLAVOR = "lab.one-gpu"
_WORDS = {"gpus": "= 1", "hypervisor": "s== LXC"}
_AT_ONCE = 20


def left(lab: settings.Lab, client: rest.Client) -> list[str]:
    """What is there because of an instance, in words; nothing while there is none."""
    used = servers.usage(client)
    return [
        *([f"Placement counts {used} GPUs as used"] if used else []),
        *(each for host in lab.hosts for each in _left_on(host)),
        *(f"loop device {device}" for device in leftovers.loop_devices(lab.folder)),
    ]


def _left_on(host: settings.Host) -> list[str]:
    lv = compute.libvirt(host)
    mountinfo = pathlib.Path(f"/proc/{lv.pid}/mountinfo").read_text()
    return [
        *(f"domain {name}" for name in lv.domains()),
        *(f"cgroup {group.path}" for group in leftovers.guest_groups(host.folder)),
        *(
            f"mount {mount.target}"
            for mount in cgroups.mounts(mountinfo)
            if mount.target.is_relative_to(host.lab.instances)
        ),
    ]


def _nothing_left(lab: settings.Lab, client: rest.Client) -> None:
    """Waits a little: libvirt removes a group after the domain."""
    try:
        steps.wait_for("nothing of the instances is left", lambda: not left(lab, client), 15.0)
    except steps.Failed:
        raise steps.Failed("left behind:\n  " + "\n  ".join(left(lab, client))) from None


def soak(lab: settings.Lab, count: int) -> None:
    """Creates and deletes *count* instances with a GPU, one after another."""
    client = rest.Client(lab)
    flavor, image = servers.flavor(client, _FLAVOR, _WORDS), servers.image(client)
    servers.delete_all(client, "soak-")
    _nothing_left(lab, client)
    began = time.monotonic()
    for number in range(1, count + 1):
        with steps.step(f"instance {number} of {count}", lab.log / "nova-compute.log"):
            server_id = servers.create(client, f"soak-{number}", flavor, image)
            server = servers.settled(client, server_id)
            if server["status"] != "ACTIVE":
                raise steps.Failed(f"{server['status']}: {servers.error_of(server)}")
            servers.delete(client, [server_id])
    _nothing_left(lab, client)
    steps.say(
        f"{count} instances created and deleted in {time.monotonic() - began:.0f} s. Placement "
        f"counts 0 GPUs as used; no domain, cgroup, mount or loop device is left."
    )


def burst(lab: settings.Lab, rounds: int) -> None:
    """Asks for more instances at once than there are GPUs, *rounds* times over."""
    client = rest.Client(lab)
    flavor, image = servers.flavor(client, _FLAVOR, _WORDS), servers.image(client)
    servers.delete_all(client, "burst-")
    _nothing_left(lab, client)
    lv = cloud.libvirt(lab)
    for number in range(1, rounds + 1):
        with steps.step(f"round {number} of {rounds}", lab.log / "nova-compute.log"):
            ids = _at_once(client, flavor, image)
            try:
                said = _judge(client, lv, ids)
            finally:
                servers.delete(client, ids)
            _nothing_left(lab, client)
        steps.say(f"            {said}")


def _at_once(client: rest.Client, flavor: str, image: str) -> list[str]:
    with concurrent.futures.ThreadPoolExecutor(_AT_ONCE) as pool:
        asked = [
            pool.submit(servers.create, client, f"burst-{number}", flavor, image)
            for number in range(_AT_ONCE)
        ]
        return [future.result() for future in asked]


def _judge(client: rest.Client, lv: libvirtd.PrivateLibvirtd, ids: list[str]) -> str:
    """What came of it, in words. :raises steps.Failed: where it is not what must be"""
    found = [servers.settled(client, server_id) for server_id in ids]
    by_status = collections.Counter(server["status"] for server in found)
    active = [server for server in found if server["status"] == "ACTIVE"]
    gpus = [node for server in active for node in servers.gpu_nodes(lv, servers.domain(server))]
    reasons = collections.Counter(
        servers.error_of(server) for server in found if server["status"] == "ERROR"
    )
    said = f"{by_status['ACTIVE']} ACTIVE with {len(set(gpus))} different GPUs, "
    said += f"{by_status['ERROR']} ERROR"
    if (len(active), len(gpus), len(set(gpus)), by_status["ERROR"]) != (8, 8, 8, _AT_ONCE - 8):
        details = "\n  ".join(f"{count} x {reason}" for reason, count in reasons.items())
        raise steps.Failed(f"{said}; GPUs {sorted(gpus)}; faults:\n  {details}")
    return said
