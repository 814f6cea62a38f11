# SPDX-License-Identifier: Apache-2.0
"""Installs and configures OpenStack from Debian's packages, without nova-gpu.

Every service is started by its script in /etc/init.d, as Debian's systemd units start it.
"""

from __future__ import annotations

import pathlib
import re
import shutil

from lab.cloud import config, packages, schema, settings, steps

_CODENAME = "trixie"
_PACKAGES = (
    *("keystone", "glance-api", "placement-api", "mariadb-server", "rabbitmq-server"),
    *("nova-api", "nova-scheduler", "nova-conductor", "nova-compute-lxc"),
    # Debian's nova-compute-lxc does not depend on this package.
    "libvirt-daemon-driver-lxc",
    *("python3-openstackclient", "python3-osc-placement", "python3-novaclient"),
    # The tools with which the lab creates guests' disks and enters guests.
    *("busybox-static", "e2fsprogs", "libvirt-clients", "mount", "sudo", "util-linux"),
)
# The options that an operator adds to Debian's files, below /etc.
_TEMPLATES = {
    "keystone/keystone.conf": ("keystone.conf",),
    "glance/glance-api.conf": ("glance-api.conf",),
    "placement/placement.conf": ("placement.conf",),
    "nova/nova.conf": ("nova.conf", "debian.conf", "nova-controller.conf", "nova-compute.conf"),
    "rabbitmq/rabbitmq.conf": ("rabbitmq.conf",),
    "mariadb/mariadb.sql": ("mariadb.sql",),
}


def install(lab: settings.DebianLab) -> None:
    """Install Debian's packages and configure the services."""
    if f"VERSION_CODENAME={_CODENAME}\n" not in pathlib.Path("/etc/os-release").read_text():
        raise steps.Failed(
            "--debian needs Debian 13: only its OpenStack is one that nova-gpu supports"
        )
    for path in _TEMPLATES:
        if (lab.etc / path).exists():
            raise steps.Failed(
                f"{lab.etc / path} exists, and --debian would change it. Use a machine without "
                "OpenStack, for example by `tools/bare --debian 13 tools/lab demo --debian`"
            )
    with steps.step("Debian's OpenStack", lab.log / "apt.log"):
        packages.debian(_PACKAGES, lab.log / "apt.log")
    with steps.step("its configuration"):
        configure(lab)


def configure(lab: settings.DebianLab) -> None:
    """Append the cloud's addresses and passwords to Debian's configuration files."""
    values = config.values(lab.hosts[0])
    for name, templates in _TEMPLATES.items():
        path = lab.etc / name
        path.parent.mkdir(exist_ok=True)
        path.touch(0o640)
        shutil.chown(path, group=lab.user(path.parent.name))
        with path.open("a") as file:
            file.writelines(f"\n{config.render(template, values)}" for template in templates)
    # Logs go to the lab's folder, and each service has one worker, for a small machine
    (lab.etc / "default/openstack").write_text("USE_LOGFILE=no\n")
    for path in lab.etc.glob("*/*-uwsgi.ini"):
        text = re.sub(r"(?m)^(logto|processes) = .*\n", "", path.read_text())
        path.write_text(f"{text}\nprocesses = 1\n")
    with (lab.etc / "hosts").open("a") as file:
        file.writelines(f"127.0.1.{host.number} {host.name}\n" for host in lab.hosts)


def prepare(lab: settings.DebianLab) -> None:
    """Start MariaDB and create the tables of every service."""
    with steps.step("MariaDB", lab.log / "mariadb.log"):
        # On a host systemd creates this folder
        socket = pathlib.Path("/run/mysqld")
        socket.mkdir(exist_ok=True)
        shutil.chown(socket, lab.user("mariadb"))
        schema.start_mariadb(lab)
    schema.sync(lab)
