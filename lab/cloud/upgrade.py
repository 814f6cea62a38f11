# SPDX-License-Identifier: Apache-2.0
"""Upgrades nova-gpu in a cloud with guests, service by service, and downgrades it again."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import subprocess
from typing import Any

from lab.cloud import (
    cloud,
    compute,
    guest,
    packages,
    process,
    rest,
    servers,
    services,
    settings,
    steps,
)

_PREFIX = "upgrade-"
_TIMEOUT_S = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class FormerLab(settings.Lab):
    """The same lab with the programs of the former release of nova-gpu."""

    @property
    def venv(self) -> pathlib.Path:
        return self.folder / "venv-former"


@dataclasses.dataclass(frozen=True, slots=True)
class _Guest:
    """A guest as it must be: its host, its GPU ``nodes``, and the ``pid`` of its first process."""

    name: str
    server_id: str
    host: settings.Host
    domain: str
    pid: int
    nodes: tuple[str, ...]


class _Cloud:
    """The cloud, and the guests that must run in it; after each change all are checked."""

    def __init__(self, lab: settings.Lab) -> None:
        self.lab, self.client = lab, rest.Client(lab)
        values = {field.name: getattr(lab, field.name) for field in dataclasses.fields(lab)}
        self.former = FormerLab(**values)
        self.guests: dict[str, _Guest] = {}
        self._flavors: dict[int, str] = {}
        self._image = servers.image(self.client)

    def controllers(self, lab: settings.Lab) -> None:
        """Restart nova-scheduler and nova-api with the programs of *lab*."""
        with steps.step(f"nova-scheduler and nova-api: {_release(lab)}"):
            for name in ("nova-scheduler", "nova-api"):
                process.stop(self.lab, name)
            services.start_controller(lab, "nova-scheduler")
            services.start_api(lab, "nova-api")
            services.wait_for_api(lab, "nova-api")
        self.check()

    def host(self, host: settings.Host, lab: settings.Lab) -> None:
        """Restart nova-compute on *host* with the programs of *lab*."""
        log = process.log_file(self.lab, host.service)
        with steps.step(f"nova-compute of {host.name}: {_release(lab)}", log):
            if not compute.is_on(host):
                compute.power_on(host)
            compute.stop(host)
            # In this one's place, where Nova looks for its helper with root's rights
            place = str(self.lab.venv)
            former = ["umount", "--lazy", place]
            if isinstance(lab, FormerLab):
                former = ["mount", "--bind", str(lab.venv), place]
            subprocess.run(compute.libvirt(host).enter(former), check=True)
            compute.start_and_wait(host, self.client)
        services.map_host(self.lab)
        self.check()

    def boot(self, name: str, host: settings.Host, count: int) -> None:
        """Boot a guest with *count* cards on the requested *host*, if the scheduler agrees."""
        with steps.step(f"{name} booted on {host.name}, cards: {count}"):
            if count not in self._flavors:
                specs = {"gpus": f"= {count}"}
                flavor = servers.flavor(self.client, f"{_PREFIX}{count}", specs)
                self._flavors[count] = flavor
            body = {
                "name": _PREFIX + name,
                "flavorRef": self._flavors[count],
                "imageRef": self._image,
                "networks": "none",
                "host": host.name,
            }
            server = self.client.post("nova-api", "/v2.1/servers", {"server": body})["server"]
            self._note(name, server["id"], host, count)
        self.check()

    def reboot(self, name: str) -> None:
        """Reboot a guest hard, so that nova-compute defines its domain again."""
        former = self.guests[name]
        with steps.step(f"{name} rebooted"):
            self._act(former, {"reboot": {"type": "HARD"}}, "ACTIVE")
            self._note(name, former.server_id, former.host, len(former.nodes))
            _expect(self.guests[name].pid != former.pid, f"{name} was not rebooted")
            _expect(self.guests[name].nodes == former.nodes, f"{name} has other cards")
        self.check()

    def migrate(self, name: str, host: settings.Host) -> None:
        former = self.guests[name]
        with steps.step(f"{name} migrated to {host.name}"):
            self._act(former, {"migrate": {"host": host.name}}, "VERIFY_RESIZE")
            self._act(former, {"confirmResize": None}, "ACTIVE")
            self._note(name, former.server_id, host, len(former.nodes))
        self.check()

    def delete(self, name: str) -> None:
        with steps.step(f"{name} deleted"):
            servers.delete(self.client, [self.guests.pop(name).server_id])
        self.check()

    def check(self) -> None:
        """Check that each guest still runs with its cards, and that Placement counts just these."""
        for row in self.guests.values():
            status = servers.show(self.client, row.server_id)["status"]
            _expect(status == "ACTIVE", f"{row.name} is {status}")
            self._check_domain(row)
        total = sum(len(row.nodes) for row in self.guests.values())
        used = servers.usage(self.client)
        _expect(used == total, f"Placement counts {used} GPUs as used, not {total}")
        on_hosts = sum(len(compute.libvirt(host).domains()) for host in self._hosts_on())
        _expect(on_hosts == len(self.guests), f"{on_hosts} domains, not {len(self.guests)}")

    def verify(self) -> None:
        """Run this release's ``nova-gpu verify`` on each host that is on."""
        for host in self._hosts_on():
            with steps.step(f"nova-gpu verify on {host.name}"):
                argv = compute.libvirt(host).enter([self.lab.program("nova-gpu"), "verify"])
                steps.run(argv, self.lab.log / "verify.log", self.lab.environment())

    def _hosts_on(self) -> list[settings.Host]:
        return [host for host in self.lab.hosts if compute.is_on(host)]

    def _check_domain(self, row: _Guest) -> None:
        libvirt = compute.libvirt(row.host)
        pid, nodes = guest.init_pid(libvirt, row.domain), servers.gpu_nodes(libvirt, row.domain)
        _expect(pid == row.pid, f"{row.name} was restarted")
        _expect(tuple(nodes) == row.nodes, f"{row.name} has {nodes}, not {row.nodes}")

    def _note(self, name: str, server_id: str, host: settings.Host, count: int) -> None:
        server = servers.wait_until_built(self.client, server_id)
        status, domain = server["status"], servers.domain(server)
        _expect(status == "ACTIVE", f"{name} is {status}: {servers.error_of(server)}")
        actual = server["OS-EXT-SRV-ATTR:host"]
        _expect(actual == host.name, f"{name} is on {actual}")
        libvirt = compute.libvirt(host)
        nodes = tuple(servers.gpu_nodes(libvirt, domain))
        _expect(len(nodes) == count, f"{name} has the cards {nodes}, not {count}")
        pid = guest.init_pid(libvirt, domain)
        self.guests[name] = _Guest(name, server_id, host, domain, pid, nodes)
        taken = [node for row in self.guests.values() if row.host == host for node in row.nodes]
        _expect(len(taken) == len(set(taken)), f"two guests have one card: {sorted(taken)}")

    def _act(self, row: _Guest, action: Any, status: str) -> None:
        """Request an action on a guest, and wait until it has *status* and no task."""
        self.client.post("nova-api", f"/v2.1/servers/{row.server_id}/action", action)

        def is_done() -> bool:
            server = servers.show(self.client, row.server_id)
            if server["status"] == "ERROR":
                raise steps.Failed(f"{row.name}: {servers.error_of(server)}")
            return server["status"] == status and not server["OS-EXT-STS:task_state"]

        steps.wait_for(f"{row.name} to be {status}", is_done, _TIMEOUT_S)


def run(lab: settings.Lab, revision: str) -> None:
    """Upgrade a new cloud of two hosts from a revision of nova-gpu to this one, and back."""
    cloud.up(lab, computes=0)
    here = _Cloud(lab)
    with steps.step(f"nova-gpu of {revision}", lab.log / "pip.log"):
        _install(here.former, revision)
    first, second = lab.hosts
    steps.say("\nAll of it is the former release\n")
    here.controllers(here.former)
    for host in lab.hosts:
        here.host(host, here.former)
    here.boot("a", first, 2)
    here.boot("b", second, 2)
    steps.say("\nThe controllers are upgraded\n")
    here.controllers(lab)
    here.boot("c", first, 2)
    here.reboot("a")
    steps.say("\nOne host is upgraded\n")
    here.host(first, lab)
    here.reboot("c")
    here.delete("a")
    # More than were free before, so that the deleted guest's are among them
    here.boot("d", first, 5)
    here.delete("d")
    here.boot("e", first, 2)
    here.migrate("b", first)
    here.migrate("b", second)
    here.migrate("c", second)
    steps.say("\nThe other host is upgraded\n")
    here.host(second, lab)
    here.reboot("b")
    here.verify()
    steps.say("\nOne host is set back\n")
    here.host(first, here.former)
    here.reboot("e")
    here.boot("f", first, 2)
    here.migrate("c", first)
    steps.say("\nThe controllers are set back, and the other host is still upgraded\n")
    here.controllers(here.former)
    here.boot("g", first, 1)
    here.boot("h", second, 2)
    here.reboot("h")
    steps.say("\nAll of it is the former release\n")
    here.host(second, here.former)
    for name in list(here.guests):
        here.reboot(name)
        here.delete(name)


def _install(lab: FormerLab, revision: str) -> None:
    """Install a revision of nova-gpu in a copy of the lab's virtual environment."""
    log, source = lab.log / "pip.log", lab.cache / "former"
    packages.debian(("git",), lab.log / "apt.log")
    for path in (lab.venv, source):
        shutil.rmtree(path, ignore_errors=True)
    source.mkdir(parents=True)
    archive = lab.cache / "former.tar"
    git = ["git", "-c", f"safe.directory={settings.ROOT}", "-C", str(settings.ROOT)]
    steps.run([*git, "archive", f"--output={archive}", revision], log)
    steps.run(["tar", "--extract", f"--file={archive}", f"--directory={source}"], log)
    shutil.copytree(lab.folder / "venv", lab.venv, symlinks=True)
    pip = [lab.program("python"), "-m", "pip", "install", "--no-deps", "--force-reinstall"]
    steps.run([*pip, str(source)], log, {**lab.environment(), "PBR_VERSION": "0.0.0"})


def _release(lab: settings.Lab) -> str:
    return "the former release" if isinstance(lab, FormerLab) else "this release"


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise steps.Failed(otherwise)
