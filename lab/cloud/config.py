# SPDX-License-Identifier: Apache-2.0
"""Writes the configuration files of the lab's services, from the files in templates/."""

from __future__ import annotations

import dataclasses
import grp
import hashlib
import pathlib
import shutil
import string

from lab.cloud import settings
from lab.vm import OUTSIDE, cards

_TEMPLATES = pathlib.Path(__file__).with_name("templates")
_SAMPLES = settings.ROOT / "etc" / "nova"
# The options that an operator adds for nova-gpu, and their file.
_COMPUTE = "nova-compute.conf"
_KVM, _STOCK = "nova-compute-kvm.conf", "nova-compute-stock.conf"
_ADDED = {
    _COMPUTE: "nova-compute.conf.sample",
    _KVM: "nova-compute-kvm.conf.sample",
    "nova-controller.conf": "nova-scheduler.conf.sample",
}
# What stock Nova gives a whole card by: each of its two functions has its alias.
_ALIASES = f"""[pci]
alias = {{"name": "gpu", "vendor_id": "{cards.VENDOR_ID}", "product_id": "{cards.PRODUCT_ID}"}}
alias = {{"name": "sound", "vendor_id": "8086", "product_id": "2668"}}
"""
_NOVA = ("nova.conf", "nova-controller.conf", "rootwrap.conf")
# The path of each file below etc/. The files contain the password, so only the group nova may read
# them.
_FILES = {
    "keystone.conf": "keystone",
    "glance-api.conf": "glance",
    "placement.conf": "placement",
    "rabbitmq.conf": "rabbitmq",
    "mariadb.sql": "mariadb",
    **dict.fromkeys(_NOVA, "nova"),
}


def values(host: settings.Host) -> dict[str, str]:
    """Return the values of the variables in templates (``$name``), by name."""
    lab, ports = host.lab, host.lab.ports
    plain = {
        "database": f"mysql+pymysql://lab:{lab.password}@127.0.0.1:{ports.mariadb}",
        "etc": str(lab.etc),
        "glance": lab.url("glance"),
        "host": str(host.tree),
        "host_state": str(host.state),
        "instances": str(lab.instances),
        "down_s": "60" if lab.kvm else "30",
        "keystone": lab.url("keystone"),
        "neutron": lab.url("neutron"),
        "nova_api": lab.url("nova-api"),
        "password": lab.password,
        "pci": _ALIASES if lab.kvm else "",
        "placement": lab.url("placement"),
        "rabbitmq_port": str(ports.rabbitmq),
        "region": settings.REGION,
        "state": str(lab.state),
        "transport": f"rabbit://nova:{lab.password}@127.0.0.1:{ports.rabbitmq}/",
        "venv": str(lab.venv),
    }
    gpu = "" if lab.real else render("nova-gpu.conf", plain)
    return {**plain, "auth": render("auth.conf", plain), "gpu": gpu}


def render(template: str, names: dict[str, str]) -> str:
    """Return the text of a template with the values of its variables."""
    return string.Template((_TEMPLATES / template).read_text()).substitute(names)


def text(template: str, names: dict[str, str], with_gpus: bool = True) -> str:
    """Return the text of a configuration file, with nova-gpu's options or without."""
    added = _ADDED.get(template) if with_gpus else None
    parts = [render(template, names), *([(_SAMPLES / added).read_text()] if added else [])]
    return "\n".join(parts)


def write(lab: settings.Lab, with_gpus: bool = True) -> None:
    """Write the lab's folder of configuration files, and those of its compute hosts."""
    shutil.rmtree(lab.etc, ignore_errors=True)
    names = values(lab.hosts[0])
    group = grp.getgrnam(settings.USER).gr_gid
    for template, folder in _FILES.items():
        _secret(lab.etc / folder / template, text(template, names, with_gpus), group)
    for host in lab.hosts:
        write_host(host, with_gpus)
    hosts = [f"127.0.1.{host.number} {host.name}" for host in lab.hosts]
    (lab.etc / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))
    # Only the lab's processes see these, in place of the machine's own files.
    sudoers = lab.etc / "sudoers.d" / "nova"
    sudoers.parent.mkdir()
    sudoers.touch(0o440)
    sudoers.write_text(render("sudoers", names))
    stock = lab.venv / "etc"
    shutil.copy(stock / "nova/api-paste.ini", lab.etc / "nova")
    shutil.copytree(stock / "nova/rootwrap.d", lab.etc / "nova/rootwrap.d")
    shutil.copy(stock / "glance/glance-api-paste.ini", lab.etc / "glance")
    shutil.copy(pathlib.Path(__file__).with_name("gunicorn_settings.py"), lab.etc)


def write_host(host: settings.Host, with_gpus: bool = True) -> None:
    """Write the compute host's nova.conf, into the folder that is /etc/nova there.

    A host in a VM also has those of both drivers, to take one in place of the other.
    """
    names, group = values(host), grp.getgrnam(settings.USER).gr_gid
    if not host.lab.kvm:
        parts = [text("nova.conf", names), text(_COMPUTE, names, with_gpus)]
        _secret(host.etc / "nova.conf", "\n".join(parts), group)
        return
    parts = [text("nova.conf", names), text(_KVM, names, with_gpus=False), render(_STOCK, names)]
    stock = "\n".join(parts)
    ours = "\n".join([*parts[:1], text(_KVM, names, with_gpus)])
    files = {"nova.conf": stock if host.lab.stock else ours}
    for name, content in {**files, "nova.conf.stock": stock, "nova.conf.nova-gpu": ours}.items():
        # where the controllers are, seen from the VM
        _secret(host.etc / name, content.replace("127.0.0.1", OUTSIDE), group)


def _secret(path: pathlib.Path, content: str, group: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o640)
    shutil.chown(path, group=group)
    path.write_text(content)


def digest(lab: settings.Lab) -> str:
    """Return a digest of all files on which the content of new databases depends."""
    names = values(dataclasses.replace(lab, kvm=False).hosts[0])  # its databases are the same
    rendered = [render(template, names) for template in sorted(_FILES)]
    installed = (lab.venv / ".installed").read_text()
    return hashlib.sha256("\0".join([installed, *rendered]).encode()).hexdigest()
