# SPDX-License-Identifier: Apache-2.0
"""The lab's compute hosts: each is a nova-compute and a private libvirtd with a hostname.

With KVM it is nova-compute and libvirtd in a VM (:mod:`lab.cloud.vm_host`).
"""

from __future__ import annotations

import contextlib
import datetime
import pathlib
import shutil
import time

from lab.cloud import libvirtd, nodes, process, rest, services, settings, steps, vm_host

# A folder must exist for a time where the host's own one is mounted.
ETC = pathlib.Path("/etc/nova")
_MACHINE = "fermi-8"
# nova-compute ends by itself within the time in templates/nova-compute.conf.
PATIENCE_S = 60.0
# Long enough for a busy machine.
_TIMEOUT_S = 600.0
# In an emulated VM on a busy machine nova-compute takes ten minutes to start.
_VM_TIMEOUT_S = 1800.0


def libvirt(host: settings.Host) -> libvirtd.PrivateLibvirtd:
    """Return the host's libvirtd, running or not."""
    lab = host.lab
    gpus = nodes.real_gpus() if lab.real else nodes.pretend_nvidia()
    covers = {
        "/etc/hosts": lab.etc / "hosts",
        str(ETC): host.etc,
        "/etc/sudoers.d": lab.etc / "sudoers.d",
    }
    machine = [*nodes.machine(), *gpus]
    return libvirtd.PrivateLibvirtd(host.folder, machine, settings.USER, covers, host.name)


def named(lab: settings.Lab, name: str | None) -> settings.Host:
    """Return the host called *name*, or the first one if *name* is ``None``."""
    for host in lab.hosts:
        if name in (None, host.name):
            return host
    known = ", ".join(host.name for host in lab.hosts)
    raise steps.Failed(f"the lab has no compute host {name}; it has {known}")


def is_on(host: settings.Host) -> bool:
    if host.lab.kvm:
        return vm_host.is_on(host)
    with contextlib.suppress(libvirtd.LibvirtdFailed):
        return libvirt(host).pid > 0
    return False


def pretend(host: settings.Host) -> None:
    """Write the files of the host's pretended GPUs, as after a first boot."""
    lab = host.lab
    shutil.rmtree(host.tree, ignore_errors=True)
    argv = [lab.program("python3"), "-m", "tests.fixtures.hosts", _MACHINE, str(host.tree)]
    environment = {**lab.environment(), "PYTHONDONTWRITEBYTECODE": "1"}
    steps.run(argv, lab.log / "host.log", environment, settings.ROOT)


def power_on(host: settings.Host, again: bool = False) -> None:
    """Switch the host on: start its libvirtd, or boot its VM."""
    if host.lab.kvm:
        vm_host.power_on(host)
        return
    if not again and not host.lab.real:
        pretend(host)
    ETC.mkdir(exist_ok=True)
    try:
        libvirt(host).start(again)
    except libvirtd.LibvirtdFailed as error:
        raise steps.Failed(str(error)) from error


def power_off(host: settings.Host) -> list[str]:
    """Switch the host off: end all of its processes; return texts about what remains.

    nova-compute is killed first, so that it cannot report the end of the guests.
    """
    if host.lab.kvm:
        vm_host.power_off(host)
        return []
    process.kill(host.lab, host.service)
    return libvirt(host).stop()


def start(host: settings.Host) -> None:
    """Start the host's nova-compute, without waiting for it."""
    lab = host.lab
    if lab.kvm:
        vm_host.start(host)
        return
    for folder in (lab.instances, host.state):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.chown(folder, settings.USER, settings.USER)
    argv = [lab.program("nova-compute"), "--config-file", f"{host.etc}/nova.conf"]
    argv = process.as_user(settings.USER, lab.command(host.service, argv))
    process.start(lab, host.service, argv, host=libvirt(host))


def stop(host: settings.Host) -> None:
    if host.lab.kvm:
        vm_host.stop(host, PATIENCE_S)
        return
    process.stop(host.lab, host.service, PATIENCE_S)


def start_and_wait(host: settings.Host, client: rest.Client, with_gpus: bool = True) -> None:
    """Start nova-compute, and wait until it has reported its resources and then that it is up.

    Its state in the API is not checked: that is down while the service is forced down.
    """
    # The API has whole seconds.
    since = int(time.time())
    start(host)

    def ready() -> bool:
        process.check(host.lab, host.daemon)
        with contextlib.suppress(OSError, rest.RequestFailed):
            service = _service(host, client)
            if not service or not service["updated_at"]:
                return False
            seen = datetime.datetime.fromisoformat(service["updated_at"])
            return seen.replace(tzinfo=datetime.UTC).timestamp() > since and reported()
        return False

    def reported() -> bool:
        if not with_gpus:
            return True
        names = [provider["name"] for provider in services.gpu_providers(client)]
        return any(name.startswith(f"{host.name}_gpu_") for name in names)

    what = "its GPUs" if with_gpus else "itself"
    limit_s = _VM_TIMEOUT_S if host.lab.kvm else _TIMEOUT_S
    steps.wait_for(f"nova-compute of {host.name} to report {what}", ready, limit_s, 0.5)


def wait_until_down(host: settings.Host, client: rest.Client) -> None:
    """Wait until the API reports the host's nova-compute as down."""

    def down() -> bool:
        service = _service(host, client)
        return service is not None and service["state"] == "down"

    steps.wait_for(f"the API to report {host.name} as down", down, _TIMEOUT_S, 1)


def _service(host: settings.Host, client: rest.Client) -> dict[str, str] | None:
    path = f"/v2.1/os-services?binary=nova-compute&host={host.name}"
    rows: list[dict[str, str]] = client.get("nova-api", path)["services"]
    return rows[0] if rows else None
