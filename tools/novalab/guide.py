# SPDX-License-Identifier: Apache-2.0
"""The page for an operator's first GPU boot, gone through word by word, in a cloud without GPUs."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence

from tools.novalab import catalog, cloud, page, process, rest, services, settings, steps

PAGE = settings.ROOT / "doc/source/install/first-boot.rst"
PAGES = (PAGE, settings.ROOT / "doc/source/reference/examples.rst")
COMPUTE, CONTROLLER = "root@compute#", "root@controller#"
# Whose credentials the clients have, by prompt.
_CLIENTS = {"admin@controller$": settings.ADMIN, "demo@controller$": settings.MEMBER}
PROMPTS = (COMPUTE, CONTROLLER, *_CLIENTS)
# What reads the host's nova.conf by itself, as the page has it.
_PROGRAMS = {COMPUTE: ("nova-gpu", "nova-gpu-status"), CONTROLLER: ("nova-gpu-status",)}
_RESTART = re.compile(r"systemctl restart ([\w -]+)")
_NOT_COPIED = (".tools", ".lab", "__pycache__", "build", "*.egg-info")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """What stands on the page, and what it is in the lab. ``prompts`` are those where it holds."""

    page: str
    lab: str
    prompts: tuple[str, ...] = PROMPTS


def places(lab: settings.Lab) -> list[Place]:
    """All that is not done as it stands on the page, beside ``systemctl restart``: the lab has no
    systemd, so that it ends and starts the services itself. The first that fits counts.
    """
    found = []
    # One folder is /etc/nova of both hosts; what is read there beside nova.conf is a host's own.
    for prompt, name in ((COMPUTE, "nova-compute.conf"), (CONTROLLER, "nova-controller.conf")):
        own = f"{lab.etc}/nova/{name}"
        options = f"--config-file {lab.etc}/nova/nova.conf --config-file {own}"
        for program in _PROGRAMS[prompt]:
            there = f"{lab.program(program)} {options} "
            found.append(Place(f"/opt/nova/bin/{program} ", there, (prompt,)))
        found.append(Place("/etc/nova/nova.conf", own, (prompt,)))
    return [
        *found,
        Place("/opt/nova", str(lab.venv)),
        Place("compute-1", socket.gethostname()),
        Place("--image rootfs", f"--image {catalog.IMAGE}"),
        # It has no Neutron.
        Place("--network private", "--nic none"),
    ]


def translated(text: str, prompt: str, table: Sequence[Place]) -> str:
    """The page's *text*, a command of *prompt* or what that prints, with the lab's places."""
    applied = [place for place in table if prompt in place.prompts]
    pattern = "|".join(re.escape(place.page) for place in applied)
    by_page = {place.page: place.lab for place in reversed(applied)}
    return re.sub(pattern, lambda match: by_page[match[0]], text)


def run(lab: settings.Lab) -> None:
    """In a cloud that :func:`tools.novalab.cloud.up` has made without nova-gpu.

    :raises steps.Failed: naming the block whose command fails or prints something else
    """
    pages = {path: blocks_of(path) for path in PAGES}
    _check_is_without(lab)
    table = places(lab)
    steps.say("\nThe lab's places for those of the pages\n")
    for place in table:
        where = "" if place.prompts == PROMPTS else f"  ({', '.join(place.prompts)})"
        steps.say(f"  {place.page:26} {place.lab}{where}")
    checkout = _checkout(lab)
    for path, blocks in pages.items():
        for block in blocks:
            steps.say(f"\nBlock {block.number} of {len(blocks)}, {path.name} line {block.line}\n")
            for command in block.commands:
                if reason := _executed(lab, command, table, checkout):
                    raise steps.Failed(
                        f"block {block.number} ({path.name} line {command.line}), "
                        f"`{command.text}`: {reason}"
                    )


def blocks_of(path: pathlib.Path) -> list[page.Block]:
    """:raises steps.Failed: where the page cannot be followed"""
    try:
        return page.read(path, PROMPTS)
    except (page.Malformed, OSError) as error:
        raise steps.Failed(f"the page cannot be followed: {error}") from error


def _check_is_without(lab: settings.Lab) -> None:
    """Else the page is not tried from its beginning."""
    if pathlib.Path(lab.program("nova-gpu")).exists():
        raise steps.Failed(f"nova-gpu is in {lab.venv} before the page installs it")
    if services.gpu_providers(rest.Client(lab)):
        raise steps.Failed("Placement has GPUs before the page has them offered")


def _checkout(lab: settings.Lab) -> pathlib.Path:
    """Where the page's commands are typed: a copy, since pip leaves files where it builds."""
    target = lab.folder / "guide" / "nova-gpu"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(settings.ROOT, target, ignore=shutil.ignore_patterns(*_NOT_COPIED))
    return target


def _executed(
    lab: settings.Lab, command: page.Command, table: Sequence[Place], checkout: pathlib.Path
) -> str | None:
    """Shows and runs one command of the page. Returns what is wrong, in words."""
    steps.say(f"{command.prompt} {command.text}")
    restarted = _RESTART.fullmatch(command.text)
    if restarted:
        return _restarted(lab, restarted[1].split())
    status, printed = _shell(lab, command, table, checkout)
    if status:
        return f"it ended with status {status}"
    expected = [translated(line, command.prompt, table) for line in command.output]
    return page.difference(expected, printed)


def _shell(
    lab: settings.Lab, command: page.Command, table: Sequence[Place], checkout: pathlib.Path
) -> tuple[int, str]:
    """(exit status, what it has printed), shown line by line meanwhile"""
    # Not by cwd: who enters a mount namespace is at its root.
    argv = ["env", f"--chdir={checkout}"]
    argv += ["bash", "-c", translated(command.text, command.prompt, table)]
    environment = {**os.environ, **lab.environment(), "PIP_CACHE_DIR": str(lab.cache / "pip")}
    if command.prompt in _CLIENTS:
        environment |= lab.credentials(_CLIENTS[command.prompt])
    else:
        # The host as Nova and libvirt see it, with its device nodes and its guests.
        argv = cloud.libvirt(lab).enter(argv)
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


def _restarted(lab: settings.Lab, names: Sequence[str]) -> str | None:
    """As systemd does it for a service that says when it is ready. Returns what is wrong."""
    client = rest.Client(lab)

    def api() -> None:
        services.start_api(lab, "nova-api")
        services.wait_for_api(lab, "nova-api")

    def scheduler() -> None:
        before = seen()
        services.start_controller(lab, "nova-scheduler")
        steps.wait_for("nova-scheduler reports that it is up", lambda: seen() != before, 60)

    def seen() -> str:
        query = "/v2.1/os-services?binary=nova-scheduler"
        return str(client.get("nova-api", query)["services"][0]["updated_at"])

    def compute() -> None:
        services.start_compute(lab)
        services.wait_for_compute(lab, client)

    start: dict[str, Callable[[], None]] = {
        "nova-api": api,
        "nova-scheduler": scheduler,
        "nova-compute": compute,
    }
    for name in names:
        if name not in start:
            return f"the lab knows no service {name}, only {', '.join(sorted(start))}"
        log = process.log_file(lab, name)
        process.stop(lab, name)
        with steps.step(f"{name} ended and started", log):
            start[name]()
    return None
