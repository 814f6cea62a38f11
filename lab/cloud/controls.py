# SPDX-License-Identifier: Apache-2.0
"""The verbs of ``tools/lab`` for one compute host; each function returns an exit status."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from lab.cloud import compute, leftovers, libvirtd, process, rest, settings, steps, vm_host


def enter(host: settings.Host, command: Sequence[str]) -> int:
    """Run *command*, or a shell without one, in the mount namespace of the compute host."""
    lab = host.lab
    if lab.kvm:
        if not command:
            raise steps.Failed("a host in a VM has no shell to open: name a command after --")
        return vm_host.run(host, command)
    try:
        argv = compute.libvirt(host).enter(command or ["bash", "--norc", "-i"])
    except libvirtd.LibvirtdFailed as error:
        raise steps.Failed(
            f"{host.name} is off: run `tools/lab power-on {host.name}` ({error})"
        ) from error
    environment = {**os.environ, **lab.environment(), **lab.credentials()}
    environment |= {"PS1": f"root@{host.name}# ", leftovers.ENVIRONMENT: host.tag}
    return subprocess.run(argv, env=environment, check=False).returncode


def stop(host: settings.Host) -> int:
    """Stop the host's nova-compute, and wait until the API reports it as down."""
    log = process.log_file(host.lab, host.service)
    with steps.step(f"nova-compute of {host.name} stopped", log):
        compute.stop(host)
    _wait_until_down(host)
    return 0


def start(host: settings.Host) -> int:
    """Start the host's nova-compute, unless it runs, and wait until it has reported its GPUs."""
    if not compute.is_on(host):
        raise steps.Failed(f"{host.name} is off: run `tools/lab power-on {host.name}`")
    if not host.lab.kvm and process.pid(host.lab, host.service):
        steps.say(f"nova-compute of {host.name} runs.")
        return 0
    log = process.log_file(host.lab, host.service)
    with steps.step(f"nova-compute of {host.name} started", log):
        # A host in a VM may have Nova's own driver by now.
        compute.start_and_wait(host, rest.Client(host.lab), with_gpus=not host.lab.kvm)
    return 0


def power_off(host: settings.Host) -> int:
    """Switch the host off with its guests, and wait until the API reports it as down.

    Return 1 if something of it remains on the machine.
    """
    if host.lab.kvm:
        raise steps.Failed("a host in a VM keeps nothing when it is off: run `tools/lab down`")
    with steps.step(f"{host.name} switched off, with its guests", compute.libvirt(host).log):
        left = compute.power_off(host)
    for leftover in left:
        steps.say(f"  LEFT: {leftover}")
    _wait_until_down(host)
    return 1 if left else 0


def power_on(host: settings.Host) -> int:
    """Switch the host on, start its nova-compute, and wait until that has reported its GPUs."""
    if not compute.is_on(host):
        with steps.step(f"{host.name} switched on"):
            compute.power_on(host, again=True)
    return start(host)


def _wait_until_down(host: settings.Host) -> None:
    with steps.step(f"the API has {host.name} as down"):
        compute.wait_until_down(host, rest.Client(host.lab))
