# SPDX-License-Identifier: Apache-2.0
"""The whole cloud: up, down, and how it is."""

from __future__ import annotations

import pathlib
import shutil

from tools.novalab import (
    account,
    catalog,
    cgroups,
    config,
    image,
    leftovers,
    libvirtd,
    nodes,
    packages,
    ports,
    process,
    rest,
    schema,
    services,
    settings,
    steps,
)

_STRANGERS = ("libvirtd", "virtlxcd", "mariadbd", "mysqld")
_MACHINE = "fermi-8"
_DEV, _DEVICES = pathlib.Path("/dev"), pathlib.Path("/proc/devices")
# nova-compute waits for its threads longer than anybody wants to: 20 s and more.
_PATIENCE_S = 1.0


def libvirt(lab: settings.Lab) -> libvirtd.PrivateLibvirtd:
    """The lab's libvirtd, whether it runs or not."""
    gpus = nodes.real_gpus() if lab.real else nodes.pretend_nvidia()
    covers = {"/etc/sudoers.d": lab.etc / "sudoers.d"}
    return libvirtd.PrivateLibvirtd(lab.folder, [*nodes.machine(), *gpus], settings.USER, covers)


def is_up(lab: settings.Lab) -> bool:
    return all(process.pid(lab, name) for name in services.NAMES)


def up(lab: settings.Lab, with_gpus: bool = True) -> None:
    """:param with_gpus: else Nova alone, and nothing of this project is installed
    :raises steps.Failed: saying what, why, and in which log
    """
    _check_machine(lab)
    for left in _clear(lab):
        steps.say(f"  left by a killed run, removed: {left}")
    _check_ports(lab)
    shutil.rmtree(lab.log, ignore_errors=True)
    packages.install(lab, with_gpus)
    with steps.step("user nova, configuration, the guest's disk", lab.log / "account.log"):
        account.create(lab)
        config.write(lab, with_gpus)
        image.build(lab.cache / "guest.raw")
    if not lab.real:
        with steps.step(f"a pretended host with GPUs ({_MACHINE})", lab.log / "host.log"):
            _pretend_host(lab)
    lv = libvirt(lab)
    # Without its log: the error says what that means.
    with steps.step("libvirtd, in mounts of its own"):
        lv.start()
    schema.prepare(lab)

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
        catalog.add_image(client, lab.cache / "guest.raw")
    with steps.step("scheduler, conductor, compute", process.log_file(lab, "nova-compute")):
        services.start_controller(lab, "nova-conductor")
        services.wait_for_conductor(lab, client)
        services.start_controller(lab, "nova-scheduler")
        services.start_compute(lab)
        services.wait_for_compute(lab, client, with_gpus)
        for name in ("nova-conductor", "nova-scheduler"):
            process.check(lab, name)
    with steps.step("host mapped to its cell", lab.log / "nova-manage.log"):
        services.map_host(lab)


def down(lab: settings.Lab) -> list[str]:
    """Takes all of it away but the folder. Returns what is left nevertheless, in words."""
    with steps.step("services stopped, from compute to database", lab.log / "nova-compute.log"):
        for name in services.NAMES:
            process.stop(lab, name, _PATIENCE_S)
    with steps.step("guests and libvirtd stopped", libvirt(lab).log):
        _clear(lab)
    return [*account.remove(lab), *found(lab)]


def found(lab: settings.Lab) -> list[str]:
    """Everything on the machine that is of this lab, in words; nothing after ``down``."""
    return [
        *libvirt(lab).leftovers(),
        *([f"user {settings.USER}"] if account.is_ours(lab) else []),
        *(f"device node {path}" for path in nodes.pretended_in(_DEV, _DEVICES.read_text())),
    ]


def _clear(lab: settings.Lab) -> list[str]:
    """Removes what a killed run left; returns it, in words."""
    cleared = libvirt(lab).leftovers()
    libvirt(lab).stop()
    return cleared


def _check_machine(lab: settings.Lab) -> None:
    try:
        layout = cgroups.detect(pathlib.Path("/proc/self/mountinfo").read_text())
    except cgroups.Unservable as error:
        raise steps.Failed(f"no LXC guest can run on this machine: {error}") from error
    steps.say(f"  control groups: {layout}" + _untried(layout))
    if lab.real and not nodes.real_gpus():
        raise steps.Failed(
            "--real, but this machine has no GPU nodes in /dev: is the driver loaded?"
        )
    for name in _STRANGERS:
        for stranger in leftovers.named(name):
            if not leftovers.belongs(stranger.pid, lab.tag):
                steps.say(f"  left alone: {stranger}")


def _untried(layout: cgroups.Layout) -> str:
    tried = layout is not cgroups.Layout.V2
    return "" if tried else " (the lab has been run on v1 and hybrid only; tell us how it went)"


def _check_ports(lab: settings.Lab) -> None:
    taken = ports.taken(lab.ports.by_service())
    if taken:
        raise steps.Failed(
            "\n  ".join(["nothing was started.", *taken])
            + "\n  It is left alone: end it yourself, or give the lab other ports (--port-base)"
        )


def _pretend_host(lab: settings.Lab) -> None:
    shutil.rmtree(lab.host, ignore_errors=True)
    argv = [lab.program("python"), "-m", "tests.fixtures.hosts", _MACHINE, str(lab.host)]
    environment = {**lab.environment(), "PYTHONDONTWRITEBYTECODE": "1"}
    steps.run(argv, lab.log / "host.log", environment, settings.ROOT)
