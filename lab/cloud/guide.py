# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of the documentation in the lab, and compares their output with the page's."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence

from lab.cloud import (
    catalog,
    cloud,
    compute,
    page,
    process,
    rest,
    services,
    settings,
    steps,
    vm_host,
)

KVM = settings.ROOT / "doc/source/install/first-boot.rst"
PAGE = settings.ROOT / "doc/source/install/first-boot-containers.rst"
EXAMPLES = settings.ROOT / "doc/source/reference/examples.rst"
MOVING = settings.ROOT / "doc/source/admin/moving.rst"
DEBIAN = settings.ROOT / "doc/source/install/debian.rst"
# No page of the documentation: the first hour of three new users
WALK = settings.ROOT / "lab/cloud/walk.rst"
PAGES = (PAGE, EXAMPLES, MOVING)
KVM_PAGES = (KVM,)
# The number of compute hosts that a page needs.
_COMPUTES = {MOVING: 2}
COMPUTE, CONTROLLER = "root@compute#", "root@controller#"
STATUS = "/opt/nova/bin/nova-gpu-status"
# The user whose credentials the clients have, by prompt.
_CLIENTS = {"admin@controller$": settings.ADMIN, "demo@controller$": settings.MEMBER}
# The number of the compute host, by prompt.
_HOSTS = {COMPUTE: 1, "root@compute-1#": 1, "root@compute-2#": 2}
PROMPTS = (*_HOSTS, CONTROLLER, *_CLIENTS)
_RESTART = re.compile(r"systemctl restart ([\w -]+)")
_POWER = re.compile(r"ipmitool -H (compute-\d)-bmc .*chassis power (off|on)")
# Long enough for a busy machine.
_STOP_S = 300.0
_READ = r"(?:gpu (?:(?:group|host) )?|resource provider |server |compute service |console log )"
_READS = re.compile(rf"openstack {_READ}(?:explain|list|show|usage)\b|\S+/nova-gpu verify$")
_SOON_S, _PAUSE_S = 300.0, 3.0
_NOT_COPIED = (".tools", ".lab", "__pycache__", "build", "*.egg-info")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A text in the pages' commands, such as a path, and its replacement in the lab.

    ``prompts`` are the prompts of the commands in which it is replaced.
    """

    page: str
    lab: str
    prompts: tuple[str, ...] = PROMPTS


def places(lab: settings.Lab) -> list[Place]:
    """Return the texts of the pages to replace in the lab; the first that matches counts.

    Commands of ``systemctl restart`` and ``ipmitool`` are not among them: the lab has no systemd
    and no BMC, and restarts services and hosts itself instead.
    """
    # Files next to nova.conf are the controller's own; a compute host has an /etc/nova of its own.
    own = f"{lab.etc}/nova/nova-controller.conf"
    options = f"--config-file {lab.etc}/nova/nova.conf --config-file {own}"
    # A host in a VM has its own paths, which are the pages'.
    here = (CONTROLLER, *_CLIENTS) if lab.kvm else PROMPTS
    return [
        Place(f"{STATUS} ", f"{lab.program('nova-gpu-status')} {options} ", (CONTROLLER,)),
        Place("/etc/nova/nova.conf", own, (CONTROLLER,)),
        Place("/opt/nova", str(lab.venv), here),
        Place("--image rootfs", f"--image {catalog.IMAGE}"),
        # The lab has no Neutron.
        Place("--network private", "--nic none"),
    ]


def translated(text: str, prompt: str, table: Sequence[Place]) -> str:
    """Return a command at *prompt*, or its output, with the texts of *table* replaced."""
    applied = [place for place in table if prompt in place.prompts]
    pattern = "|".join(re.escape(place.page) for place in applied)
    by_page = {place.page: place.lab for place in reversed(applied)}
    return re.sub(pattern, lambda match: by_page[match[0]], text)


def is_read(text: str) -> bool:
    """Return whether the command line *text* only reads.

    Such a command is repeated until its output is as on the page, because a cloud changes slowly.
    """
    return bool(_READS.match(text))


def run(lab: settings.Lab, *, walk: bool = False) -> None:
    """Run the commands of all pages, in a cloud that :func:`cloud.up` has made without nova-gpu.

    :param walk: run those of :data:`WALK` instead, in a cloud with two hosts that have GPUs
    """
    paths = (WALK,) if walk else KVM_PAGES if lab.kvm else PAGES
    pages = {path: blocks_of(path) for path in paths}
    if not walk:
        _check_is_without(lab)
    table = places(lab)
    steps.say("\nTexts of the pages, and their replacements in the lab\n")
    for place in table:
        where = "" if place.prompts == PROMPTS else f"  ({', '.join(place.prompts)})"
        steps.say(f"  {place.page:26} {place.lab}{where}")
    checkout = _checkout(lab)
    for path, blocks in pages.items():
        for host in lab.hosts[: _COMPUTES.get(path, 1)]:
            if not compute.is_on(host):
                steps.say(f"\n{path.name} needs one more compute host\n")
                cloud.add(host)
        for block in blocks:
            steps.say(f"\nBlock {block.number} of {len(blocks)}, {path.name} line {block.line}\n")
            for command in block.commands:
                if reason := _execute(lab, command, table, checkout):
                    raise steps.Failed(
                        f"block {block.number} ({path.name} line {command.line}), "
                        f"`{command.text}`: {reason}"
                    )


def follow(lab: settings.Lab) -> None:
    """Install nova-gpu in Debian's OpenStack by the commands of install/debian.rst."""
    folder, log = _checkout(lab), lab.log / "debian.log"
    for title in ("Build", "Install", "Configure"):
        for script in _scripts(title):
            lines = script.splitlines()
            for line in lines:
                steps.say(f"root# {line}")
            restarts = [match for line in lines if (match := _RESTART.fullmatch(line))]
            if len(restarts) == len(lines):
                reasons = [_restart(lab, match[1].split(), 1) for match in restarts]
                if any(reasons):
                    raise steps.Failed(f"{DEBIAN.name}: {reasons}")
                continue
            with steps.step(f"{DEBIAN.name}: {title}", log):
                argv = ["env", f"--chdir={folder}", "bash", "-euxc", script]
                if title == "Configure":
                    # In the mount namespace of the host, as Nova and libvirt see it, with its
                    # device nodes
                    argv = compute.libvirt(lab.hosts[0]).enter(argv)
                steps.run(argv, log, {**os.environ, "DEBIAN_FRONTEND": "noninteractive"})


def _scripts(title: str) -> list[str]:
    try:
        return page.scripts(DEBIAN, title)
    except page.Malformed as error:
        raise steps.Failed(f"the commands of a page cannot be run: {error}") from error


def blocks_of(path: pathlib.Path) -> list[page.Block]:
    """Return the blocks of commands on the page at *path*."""
    try:
        return page.read(path, PROMPTS)
    except (page.Malformed, OSError) as error:
        raise steps.Failed(f"the commands of a page cannot be run: {error}") from error


def _check_is_without(lab: settings.Lab) -> None:
    """Refuse a cloud that has nova-gpu or GPUs, because the pages begin without.

    In a VM, which has no network, nova-gpu is installed from the beginning.
    """
    if not lab.kvm and pathlib.Path(lab.program("nova-gpu")).exists():
        raise steps.Failed(f"nova-gpu is in {lab.venv} already, before a page installs it")
    if services.gpu_providers(rest.Client(lab)):
        raise steps.Failed("Placement has GPUs already, before a page offers them")


def _checkout(lab: settings.Lab) -> pathlib.Path:
    """Copy the checkout, and return the copy, in which the pages' commands run.

    pip leaves files where it builds.
    """
    target = lab.folder / "guide" / "nova-gpu"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(settings.ROOT, target, ignore=shutil.ignore_patterns(*_NOT_COPIED))
    return target


def _execute(
    lab: settings.Lab, command: page.Command, table: Sequence[Place], checkout: pathlib.Path
) -> str | None:
    """Print and run one command of a page; return what went wrong, or ``None``."""
    steps.say(f"{command.prompt} {command.text}")
    restarted = _RESTART.fullmatch(command.text)
    if restarted:
        return _restart(lab, restarted[1].split(), _HOSTS.get(command.prompt, 1))
    if power := _POWER.fullmatch(command.text):
        return _switch_power(compute.named(lab, power[1]), power[2] == "on")
    expected = [translated(line, command.prompt, table) for line in command.output]
    deadline = time.monotonic() + _SOON_S
    while True:
        status, printed = _shell(lab, command, table, checkout)
        different = f"it ended with status {status}" if status else None
        different = different or page.difference(expected, printed)
        if not different or not is_read(command.text) or time.monotonic() > deadline:
            return different
        steps.say("  (not yet the output on the page: repeated)")
        time.sleep(_PAUSE_S)


def _shell(
    lab: settings.Lab, command: page.Command, table: Sequence[Place], checkout: pathlib.Path
) -> tuple[int, str]:
    """Run the command, print its output line by line, and return its exit status and output."""
    if lab.kvm and command.prompt in _HOSTS:
        script = f"cd /project\n{translated(command.text, command.prompt, table)}"
        status, output = vm_host.output(lab.hosts[0], script)
        for line in output.splitlines():
            steps.say(f"  {line}")
        return status, output
    # Not by cwd: a process that enters a mount namespace is at its root.
    argv = ["env", f"--chdir={checkout}"]
    argv += ["bash", "-c", translated(command.text, command.prompt, table)]
    environment = {**os.environ, **lab.environment(), "PIP_CACHE_DIR": str(lab.cache / "pip")}
    if command.prompt in _CLIENTS:
        environment |= lab.credentials(_CLIENTS[command.prompt])
    elif command.prompt in _HOSTS:
        # In the mount namespace of the host, with its device nodes and its guests.
        host = lab.hosts[_HOSTS[command.prompt] - 1]
        argv = compute.libvirt(host).enter(argv)
    printed = []
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            printed.append(line)
            steps.say(f"  {line.rstrip()}")
    return child.returncode, "".join(printed)


def _switch_power(host: settings.Host, on: bool) -> str | None:
    """Switch a host off or on as its BMC does, and start nova-compute on it as systemd does.

    Return what went wrong, or ``None``.
    """
    with steps.step(f"{host.name} switched {'on' if on else 'off'}"):
        if not on:
            return "\n".join(compute.power_off(host)) or None
        compute.power_on(host, again=True)
        compute.start_and_wait(host, rest.Client(host.lab))
    return None


def _restart(lab: settings.Lab, names: Sequence[str], number: int) -> str | None:
    """Restart services and wait until they are ready, as systemd does.

    Return what went wrong, or ``None``.
    """
    client = rest.Client(lab)

    def api() -> None:
        services.start_api(lab, "nova-api")
        services.wait_for_api(lab, "nova-api")

    def scheduler() -> None:
        before = seen()
        services.start_controller(lab, "nova-scheduler")
        steps.wait_for("nova-scheduler to report that it is up", lambda: seen() != before, _STOP_S)

    def seen() -> str:
        query = "/v2.1/os-services?binary=nova-scheduler"
        return str(client.get("nova-api", query)["services"][0]["updated_at"])

    host = lab.hosts[number - 1]
    start: dict[str, Callable[[], None]] = {
        "nova-api": api,
        "nova-scheduler": scheduler,
        "nova-compute": lambda: compute.start_and_wait(host, client),
    }
    for name in names:
        if name not in start:
            return f"the lab cannot restart {name}, only {', '.join(sorted(start))}"
        daemon = host.service if name == "nova-compute" else name
        log = process.log_file(lab, daemon)
        if daemon == host.service:
            compute.stop(host)
        else:
            process.stop(lab, daemon, _STOP_S)
        with steps.step(f"{name} ended and started", log):
            start[name]()
    return None
