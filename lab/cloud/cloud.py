# SPDX-License-Identifier: Apache-2.0
"""Brings the whole cloud up, takes it down, and finds what is there of it."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import time

from lab.cloud import (
    account,
    catalog,
    cgroups,
    compute,
    config,
    debian,
    image,
    leftovers,
    nodes,
    packages,
    ports,
    process,
    rest,
    schema,
    services,
    settings,
    steps,
    vm_host,
)

_STRANGERS = ("libvirtd", "virtlxcd", "mariadbd", "mysqld")
_DEV, _DEVICES = pathlib.Path("/dev"), pathlib.Path("/proc/devices")
# A process that is stopped ends soon after this; one that is killed ends at once.
_PATIENCE_S = 1.0
# The kernel takes a while to remove the mounts of the last process on a busy machine.
_GONE_S = 60.0


def is_up(lab: settings.Lab) -> bool:
    """Return whether all services of the controller run; compute hosts may be off."""
    return all(process.pid(lab, name) for name in services.CONTROLLER)


def up(lab: settings.Lab, with_gpus: bool = True, computes: int | None = None) -> None:
    """Bring the cloud up, after removing what a killed run left of it.

    :param with_gpus: whether nova-gpu is configured, and installed where that can be done later
    :param computes: how many of its compute hosts to switch on; by default all
    """
    hosts = lab.hosts[:computes]
    _check_machine(lab)
    for left in _clear(lab):
        steps.say(f"  left by a killed run, removed: {left}")
    _check_ports(lab)
    shutil.rmtree(lab.log, ignore_errors=True)
    if isinstance(lab, settings.DebianLab):
        debian.install(lab)
    else:
        packages.install(lab, with_gpus or lab.kvm)
        with steps.step("user nova, configuration", lab.log / "account.log"):
            account.create(lab)
            config.write(lab, with_gpus)
    if not lab.kvm:
        with steps.step("the guest's disk"):
            image.build(lab.cache / "guest.raw")
    for host in hosts:
        # Without libvirtd's log, because the error explains it.
        with steps.step(f"{host.name}: GPUs, and libvirtd of its own"):
            compute.power_on(host)
    (debian if isinstance(lab, settings.DebianLab) else schema).prepare(lab)

    def broker() -> None:
        with steps.step("RabbitMQ", process.log_file(lab, "rabbitmq")):
            services.start_rabbitmq(lab)

    def apis() -> None:
        services.start_neutron(lab)
        names = ("keystone", "placement", "glance", "nova-api")
        for name in names:
            services.start_api(lab, name)
        for name in names:
            with steps.step(f"{name} at {lab.url(name)}", process.log_file(lab, name)):
                services.wait_for_api(lab, name)

    steps.together(broker, apis)
    client = rest.Client(lab)
    with steps.step("service catalogue and image", process.log_file(lab, "keystone")):
        catalog.fill(lab, client)
        if lab.kvm:
            catalog.add_booted_image(client, *vm_host.guest_files(lab, lab.cache))
        else:
            catalog.add_image(client, lab.cache / "guest.raw")
    with steps.step("scheduler and conductor", process.log_file(lab, "nova-conductor")):
        services.start_controller(lab, "nova-conductor")
        services.wait_for_conductor(lab, client)
        services.start_controller(lab, "nova-scheduler")
    steps.together(*(lambda host=host: _started(host, client, with_gpus) for host in hosts))
    for name in ("nova-conductor", "nova-scheduler"):
        process.check(lab, name)
    with steps.step("hosts mapped to their cell", lab.log / "nova-manage.log"):
        services.map_host(lab)


def add(host: settings.Host) -> None:
    """Switch one more compute host on in a cloud that is up, and start nova-compute with GPUs."""
    with steps.step(f"{host.name}: configuration, GPUs, libvirtd"):
        config.write_host(host)
        compute.power_on(host)
    _started(host, rest.Client(host.lab), True)
    with steps.step("host mapped to its cell", host.lab.log / "nova-manage.log"):
        services.map_host(host.lab)


def _started(host: settings.Host, client: rest.Client, with_gpus: bool) -> None:
    with steps.step(f"{host.name}: nova-compute", process.log_file(host.lab, host.service)):
        compute.start_and_wait(host, client, with_gpus and not host.lab.stock)


def down(lab: settings.Lab) -> list[str]:
    """Stop the cloud and remove all of it but its folder; return texts about what remains."""
    with steps.step("services stopped, from compute to database", lab.log / "nova-compute.log"):
        for name in services.names(lab):
            process.stop(lab, name, _PATIENCE_S)
    with steps.step("guests and libvirtd stopped", compute.libvirt(lab.hosts[0]).log):
        deadline = time.monotonic() + _GONE_S
        while left := _remove(lab):
            if time.monotonic() > deadline:
                break
            time.sleep(0.5)
    return left


def _remove(lab: settings.Lab) -> list[str]:
    """Remove all that is left after the services stopped; return texts about what remains."""
    _clear(lab)
    with contextlib.suppress(OSError):
        # The folder is removed only if it is empty.
        compute.ETC.rmdir()
    return [*account.remove(lab), *found(lab)]


def found(lab: settings.Lab) -> list[str]:
    """Return texts about all that this lab has outside of its folder; empty after ``down``."""
    return [
        *(leftover for host in lab.hosts for leftover in compute.libvirt(host).leftovers()),
        *leftovers.found(lab.folder),
        *([f"user {settings.USER}"] if account.is_ours(lab) else []),
        *(f"device node {path}" for path in nodes.pretended_in(_DEV, _DEVICES.read_text())),
    ]


def _clear(lab: settings.Lab) -> list[str]:
    """Remove what a killed run left on the machine; return texts about it."""
    cleared = []
    for host in lab.hosts:
        cleared += compute.libvirt(host).leftovers()
        compute.power_off(host)
    return cleared + leftovers.clear(lab.folder)


def _check_machine(lab: settings.Lab) -> None:
    try:
        layout = cgroups.detect(pathlib.Path("/proc/self/mountinfo").read_text())
    except cgroups.Unservable as error:
        raise steps.Failed(f"no LXC guest can run on this machine: {error}") from error
    steps.say(f"  control groups: {layout}")
    if lab.real and not nodes.real_gpus():
        raise steps.Failed(
            "--real needs GPUs, but this machine has no GPU nodes in /dev: load the driver"
        )
    for name in _STRANGERS:
        for stranger in leftovers.named(name):
            if not any(leftovers.belongs(stranger.pid, tag) for tag in process.tags(lab)):
                steps.say(f"  left alone: {stranger}")


def _check_ports(lab: settings.Lab) -> None:
    taken = ports.taken(lab.ports.by_service())
    if taken:
        raise steps.Failed(
            "\n  ".join(["nothing was started.", *taken])
            + "\n  End these processes, or give the lab other ports (--port-base)"
        )
