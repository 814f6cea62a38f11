# SPDX-License-Identifier: Apache-2.0
"""The settings of a lab: its folder and the paths in it, its ports, password and hosts."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import secrets
from collections.abc import Sequence

from lab.cloud import leftovers

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFAULT_FOLDER = pathlib.Path("/var/lib/nova-gpu-lab")
FOLDER_VARIABLE = "NOVA_GPU_LAB_DIR"
RELEASE = "2026.2"
REGION = "RegionOne"
USER = "nova"
# The cloud's users, each in a project of the same name, and with the lab's password.
ADMIN, MEMBER = "admin", "demo"


@dataclasses.dataclass(frozen=True, slots=True)
class Ports:
    """The TCP ports on 127.0.0.1, each named after the service that listens there."""

    keystone: int = 5000
    glance: int = 9292
    placement: int = 8778
    nova_api: int = 8774
    neutron: int = 9696
    mariadb: int = 3307
    rabbitmq: int = 5672
    erlang: int = 25672
    epmd: int = 4369

    @classmethod
    def from_base(cls, base: int) -> Ports:
        """Return ports with consecutive numbers from *base* on."""
        count = len(dataclasses.fields(cls))
        if not 1024 <= base <= 65536 - count:
            raise ValueError(f"a port base is from 1024 to {65536 - count}, not {base}")
        return cls(*range(base, base + count))

    def by_service(self) -> dict[str, int]:
        return {name.replace("_", "-"): port for name, port in dataclasses.asdict(self).items()}


@dataclasses.dataclass(frozen=True, slots=True)
class Lab:
    """A cloud in a folder of this machine, as ``tools/lab up`` brings it up.

    ``real``: it offers the machine's own GPUs instead of pretended ones. ``computes`` is the number
    of its compute hosts. ``kvm``: its compute host is a VM with cards, and its guests are of KVM.
    ``stock``: that host begins with Nova's own driver, and cards by an alias.
    """

    folder: pathlib.Path
    ports: Ports
    password: str
    real: bool = False
    computes: int = 1
    kvm: bool = False
    stock: bool = False

    @property
    def tag(self) -> str:
        return leftovers.tag(self.folder)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All compute hosts of the lab, on or off."""
        return tuple(Host(self, number) for number in range(1, self.computes + 1))

    @property
    def venv(self) -> pathlib.Path:
        return self.folder / "venv"

    @property
    def etc(self) -> pathlib.Path:
        return self.folder / "etc"

    @property
    def log(self) -> pathlib.Path:
        return self.folder / "log"

    @property
    def state(self) -> pathlib.Path:
        """The folder for files that the services write; ``up`` deletes it first."""
        return self.folder / "state"

    @property
    def cache(self) -> pathlib.Path:
        """The folder for downloads and built files, which each ``up`` uses again."""
        return self.folder / "cache"

    @property
    def instances(self) -> pathlib.Path:
        """The folder with the instances' disks, which all compute hosts share, as by NFS."""
        return self.state / "instances"

    @property
    def controller_files(self) -> tuple[str, ...]:
        """The files in etc/nova that Nova's services except nova-compute read."""
        return ("nova.conf", "nova-controller.conf")

    def of_host(self, folder: pathlib.Path, host: str) -> pathlib.Path:
        """Return the part of *folder* that is for the compute host with the name *host*."""
        return folder / host

    def user(self, service: str) -> str:
        """Return the machine's user that a service runs as."""
        return USER

    def command(self, service: str, argv: Sequence[str]) -> Sequence[str]:
        """Return the command that runs a service in the foreground, here *argv* itself."""
        return argv

    def url(self, service: str) -> str:
        return f"http://127.0.0.1:{self.ports.by_service()[service]}"

    def program(self, name: str) -> str:
        return str(self.venv / "bin" / name)

    def credentials(self, user: str = ADMIN) -> dict[str, str]:
        """Return the environment variables by which OpenStack's clients log in as *user*."""
        return {
            "OS_AUTH_URL": f"{self.url('keystone')}/v3",
            "OS_USERNAME": user,
            "OS_PASSWORD": self.password,
            "OS_PROJECT_NAME": user,
            "OS_USER_DOMAIN_ID": "default",
            "OS_PROJECT_DOMAIN_ID": "default",
            "OS_IDENTITY_API_VERSION": "3",
            "OS_REGION_NAME": REGION,
            "OS_COMPUTE_API_VERSION": "2.96",
            "OS_PLACEMENT_API_VERSION": "1.39",
        }

    def environment(self) -> dict[str, str]:
        """Return the environment variables of the lab's processes, with the lab's tag."""
        return {
            "PATH": f"{self.venv}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.state),
            "LANG": "C.UTF-8",
            "TMPDIR": "/tmp",
            leftovers.ENVIRONMENT: self.tag,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class DebianLab(Lab):
    """A lab of Debian's OpenStack packages, with the folders and users that they create."""

    @property
    def venv(self) -> pathlib.Path:
        return pathlib.Path("/usr")

    @property
    def etc(self) -> pathlib.Path:
        return pathlib.Path("/etc")

    @property
    def state(self) -> pathlib.Path:
        return pathlib.Path("/var/lib")

    @property
    def instances(self) -> pathlib.Path:
        return self.state / "nova/instances"

    @property
    def controller_files(self) -> tuple[str, ...]:
        return ("nova.conf",)

    def of_host(self, folder: pathlib.Path, host: str) -> pathlib.Path:
        return folder / "nova"

    def user(self, service: str) -> str:
        named = {"mariadb": "mysql", "neutron": USER}
        return named.get(service) or service.partition("-")[0]

    def command(self, service: str, argv: Sequence[str]) -> Sequence[str]:
        """Return the command in the systemd unit of an OpenStack service, *argv* for others."""
        name = f"{service}-api" if service in ("glance", "placement") else service
        is_debians = name == "keystone" or name.startswith(("nova-", "glance-", "placement-"))
        return [f"/etc/init.d/{name}", "systemd-start"] if is_debians else argv


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """A compute host of the lab: a name, mounts, a libvirtd, a folder and GPUs of its own."""

    lab: Lab
    number: int

    @property
    def name(self) -> str:
        return f"compute-{self.number}"

    @property
    def service(self) -> str:
        """The name of the host's nova-compute among the lab's daemons."""
        return "nova-compute" if self.number == 1 else f"nova-compute-{self.number}"

    @property
    def daemon(self) -> str:
        """The name of the process of this machine in which nova-compute runs."""
        return self.name if self.lab.kvm else self.service

    @property
    def folder(self) -> pathlib.Path:
        return self.lab.folder / self.name

    @property
    def tag(self) -> str:
        """The tag of this host's processes (:mod:`lab.cloud.leftovers`)."""
        return leftovers.tag(self.folder)

    @property
    def tree(self) -> pathlib.Path:
        """The folder with the sysfs and proc of the host's pretended GPUs."""
        return self.folder / "host"

    @property
    def state(self) -> pathlib.Path:
        return self.lab.of_host(self.lab.state, self.name)

    @property
    def etc(self) -> pathlib.Path:
        """The folder that is /etc/nova on the host."""
        return self.lab.of_host(self.lab.etc, self.name)


def folder(text: str | None) -> pathlib.Path:
    return pathlib.Path(text or os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER).resolve()


def load(path: pathlib.Path) -> Lab | None:
    """Return the lab in the folder *path* with its last settings; ``None`` if there is none."""
    try:
        saved = json.loads((path / "lab.json").read_text())
    except FileNotFoundError:
        return None
    kind = DebianLab if saved.pop("debian", False) else Lab
    return kind(path, **{**saved, "ports": Ports(**saved["ports"])})


def save(
    path: pathlib.Path,
    port_base: int | None = None,
    real: bool = False,
    computes: int = 1,
    debian: bool = False,
    kvm: bool = False,
    stock: bool = False,
) -> Lab:
    """Write these settings of the lab in the folder *path*, and return the lab.

    Its password stays; its ports stay if *port_base* is ``None``.
    """
    before = load(path)
    kind = DebianLab if debian else Lab
    ports = before.ports if type(before) is kind else Ports(mariadb=3306) if debian else Ports()
    lab = kind(
        path,
        Ports.from_base(port_base) if port_base else ports,
        before.password if before else secrets.token_hex(12),
        real,
        computes,
        kvm,
        stock,
    )
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(0o755)
    file = path / "lab.json"
    file.touch(0o600)
    saved = {**dataclasses.asdict(lab), "debian": debian}
    del saved["folder"]  # the file is there
    file.write_text(json.dumps(saved, indent=2) + "\n")
    return lab
