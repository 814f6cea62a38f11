# SPDX-License-Identifier: Apache-2.0
"""The demo: boots instances with GPUs by commands that it prints, and checks each result."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lab.cloud import (
    catalog,
    compute,
    guest,
    image,
    libvirtd,
    nodes,
    notifications,
    process,
    rest,
    servers,
    services,
    settings,
    shown,
    steps,
)

_FLAVOR, _LARGE = "cg1.xlarge", "cg1.8xlarge"
_FIRST, _SECOND = "demo-first", "demo-second"
_ARCHITECTURE = "CUSTOM_GPU_ARCH_"
_PRETENDED = "no driver is behind a pretended node: the device cgroup let the user through"
_OPEN = 'for n in /dev/nvidia*; do (: <"$n") 2>&1 | sed "s/.*open //"; done'


def run(lab: settings.Lab) -> None:
    """Run the demo in a cloud that is up."""
    with notifications.listening(lab) as receiver:
        _run(lab, receiver)


def _run(lab: settings.Lab, receiver: notifications.Receiver) -> None:
    client, lv = rest.Client(lab), compute.libvirt(lab.hosts[0])
    servers.delete_all(client, "demo-")
    servers.delete_flavors(client, (_FLAVOR, _LARGE))
    provider = services.gpu_providers(client)[0]["uuid"]
    architecture, total = _offer(client, provider)
    wanted = min(2, total)
    admin, member = settings.ADMIN, settings.MEMBER

    steps.say("\nThe flavor of the blueprint, and an instance on it\n")
    words = ["--property", f"gpus== {wanted}", "--property", f"gpu_arch=s== {architecture}"]
    words += ["--property", "hypervisor=s== LXC", "-c", "name", "-c", "properties"]
    shown.openstack(lab, admin, "flavor", "create", _FLAVOR, *shown.SIZE, *words)
    _create(lab, _FIRST, _FLAVOR)
    domain = servers.domain(_named(client, _FIRST))

    steps.say("\nInside, as an ordinary user\n")
    own = _inside(lv, domain, wanted, lab.real)
    steps.say("\nInside, as root: a GPU that is not its own\n")
    _escapes(lv, domain, own, lab.real)
    ours, hosts = guest.network_namespaces(lv, domain)
    steps.say(f"\n  its network namespace is {ours}, the host's {hosts}")
    _expect(ours != hosts, "the guest shares the host's network")

    steps.say("\nWhat Placement counts\n")
    _usage(lab, client, provider, wanted)

    steps.say("\nA second instance, for which there are not enough, by Nova's own client\n")
    shown.openstack(lab, admin, "flavor", "create", _LARGE, *shown.SIZE, "-c", "name")
    shown.run(lab, admin, "nova", "flavor-key", _LARGE, "set", f"gpus== {total}")
    words = ["--flavor", _LARGE, "--image", catalog.IMAGE, "--nic", "none", "--poll", _SECOND]
    shown.run(lab, member, "nova", "boot", *words, succeeds=False, last=3)
    words = ["-f", "yaml", "-c", "status", "-c", "fault"]
    # By its id: Nova 2025.1 lists a server without a host without its fault.
    second = _named(client, _SECOND)["id"]
    shown.openstack(lab, member, "server", "show", second, *words)
    fault = servers.error_of(servers.show(client, second))
    free = str(total - wanted or "none")
    match = re.search(rf"\b{free} free\b", fault)
    _expect(bool(match), f"the fault does not say that {free} are free: {fault}")

    steps.say("\nBoth deleted\n")
    shown.openstack(lab, member, "server", "delete", "--wait", _FIRST, _SECOND)
    _usage(lab, client, provider, 0)
    _expect(not lv.domains(), "libvirt still has domains")

    steps.say("\nNotifications that a listener on the cloud's RabbitMQ received\n")
    for heard in receiver.wait_for("gpu.claim", "gpu.no_valid_host", "gpu.release"):
        steps.say(f"  {notifications.text(heard)}")


def _create(lab: settings.Lab, name: str, flavor: str) -> None:
    try:
        shown.boot(lab, name, flavor)
    except steps.Failed as error:
        fault = servers.error_of(_named(rest.Client(lab), name))
        log = process.log_file(lab, "nova-compute")
        raise steps.Failed(f"{error}\n  its fault: {fault}\n  see {log}") from error


def _named(client: rest.Client, name: str) -> Any:
    (server,) = client.get("nova-api", f"/v2.1/servers/detail?all_tenants=1&name=^{name}$")[
        "servers"
    ]
    return server


def _inside(lv: libvirtd.PrivateLibvirtd, domain: str, wanted: int, real: bool) -> list[str]:
    """List and open the GPU nodes in the guest *domain* as its ordinary user, and check both."""
    for command in ("id -u", "ls -l /dev/nvidia*", _OPEN):
        result = guest.run(lv, domain, ["/bin/sh", "-c", command], image.USER_ID)
        steps.say(f"{image.USER}@{domain}$ {command}")
        for line in (result.stdout + result.stderr).splitlines():
            steps.say(f"  {line}")
        _expect(result.returncode == 0, f"`{command}` failed in the guest")
        _expect("not permitted" not in result.stdout, "the guest may not open its own GPU")
        _expect("ermission denied" not in result.stdout, "the user may not open the guest's GPU")
    if real:
        _expect(not result.stdout, "the driver does not open what the guest has")
    let_in = "no error: the driver opened each of them" if real else _PRETENDED
    steps.say(f"  ({let_in})")
    own = servers.gpu_nodes(lv, domain)
    _expect(len(own) == wanted, f"the guest has the cards {own}, not {wanted}")
    return own


def _escapes(lv: libvirtd.PrivateLibvirtd, domain: str, own: Sequence[str], real: bool) -> None:
    present = nodes.real_gpus() if real else nodes.pretend_nvidia()
    others = [node for node in present if node.name[-1:].isdigit() and node.path not in own]
    if not others:
        steps.say("  every GPU of this host is the guest's own")
        return
    attempts = guest.escapes(lv, domain, others[0])
    for attempt in attempts:
        verdict = "refused" if attempt.refused else "POSSIBLE"
        steps.say(f"  {attempt.way:45} {verdict}: {attempt.message.rpartition(': ')[2]}")
    open_ways = [attempt.way for attempt in attempts if not attempt.refused]
    _expect(not open_ways, f"root in the guest gets at {others[0].path}: {', '.join(open_ways)}")


def _usage(lab: settings.Lab, client: rest.Client, provider: str, expected: int) -> None:
    shown.openstack(lab, settings.ADMIN, "resource", "provider", "usage", "show", provider)
    used = servers.usage(client)
    _expect(used == expected, f"Placement counts {used} GPUs as used, not {expected}")


def _offer(client: rest.Client, provider: str) -> tuple[str, int]:
    """Return the architecture and the number of cards that Placement has for a provider."""
    path = f"/resource_providers/{provider}"
    total = client.get("placement", f"{path}/inventories")["inventories"]["PGPU"]["total"]
    traits = client.get("placement", f"{path}/traits")["traits"]
    architectures = [trait for trait in traits if trait.startswith(_ARCHITECTURE)]
    return architectures[0].removeprefix(_ARCHITECTURE).lower(), int(total)


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise steps.Failed(otherwise)
