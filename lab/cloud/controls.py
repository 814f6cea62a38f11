# SPDX-License-Identifier: Apache-2.0
"""Commands for one compute host: a shell, nova-compute, its power. Each returns an exit status."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from lab.cloud import compute, leftovers, libvirtd, process, rest, settings, steps


def enter(host: settings.Host, command: Sequence[str]) -> int:
    """Run *command*, or a shell, with the libvirt and the /etc/nova of the host."""
    lab = host.lab
    try:
        argv = compute.libvirt(host).enter(command or ["bash", "--norc", "-i"])
    except libvirtd.LibvirtdFailed as error:
        raise steps.Failed(f"{host.name} is off: {error}") from error
    environment = {**os.environ, **lab.environment(), **lab.credentials()}
    environment |= {"PS1": f"root@{host.name}# ", leftovers.ENVIRONMENT: host.tag}
    return subprocess.run(argv, env=environment, check=False).returncode


def stop(host: settings.Host) -> int:
    """Stop nova-compute, and wait until the API reports it as down."""
    log = process.log_file(host.lab, host.service)
    with steps.step(f"nova-compute of {host.name} stopped", log):
        compute.stop(host)
    _wait_until_down(host)
    return 0


def start(host: settings.Host) -> int:
    """Start nova-compute, and wait until it reports to the API."""
    if not compute.is_on(host):
        raise steps.Failed(f"{host.name} is off: `tools/lab power-on {host.name}`")
    if process.pid(host.lab, host.service):
        steps.say(f"nova-compute of {host.name} runs.")
        return 0
    log = process.log_file(host.lab, host.service)
    with steps.step(f"nova-compute of {host.name} started", log):
        compute.started(host, rest.Client(host.lab))
    return 0


def power_off(host: settings.Host) -> int:
    """Switch the host off with its guests, and wait until the API reports it as down."""
    with steps.step(f"{host.name} switched off, with its guests", compute.libvirt(host).log):
        left = compute.power_off(host)
    for server in left:
        steps.say(f"  LEFT: {server}")
    _wait_until_down(host)
    return 1 if left else 0


def power_on(host: settings.Host) -> int:
    """Switch the host on, and start its nova-compute."""
    if not compute.is_on(host):
        with steps.step(f"{host.name} switched on"):
            compute.power_on(host, again=True)
    return start(host)


def _wait_until_down(host: settings.Host) -> None:
    with steps.step(f"the API has {host.name} as down"):
        compute.wait_until_down(host, rest.Client(host.lab))
