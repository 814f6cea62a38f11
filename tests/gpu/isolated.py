# SPDX-License-Identifier: Apache-2.0
"""CUDA where there is little: in a /dev of few nodes, or in a container of libvirt's."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence

from nova.virt.libvirt import config as vconfig

from nova_gpu.core.container import GuestContents
from nova_gpu.core.model import PciAddress
from nova_gpu.virt.delivery import guest_config
from tests.gpu import machine

_PROGRAM = pathlib.Path(__file__).with_name("cuda.py")
_LIBVIRT = ["virsh", "-q", "-c", "lxc:///system"]
# What any program may need, and no card's
_COMMON = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/shm")
_MIB = 1 << 10
# Folders of a root that a container has of its own
_CONTAINERS_OWN = ("dev", "proc", "run", "sys", ".oldroot")
_SHARED = "/nova-gpu-shared"
_INIT = """#!/bin/sh
{command} > {folder}/started 2> {folder}/stderr
mv {folder}/started {folder}/told
"""
# In a mount namespace of its own, which ends with it: $1 becomes /dev, with all until "--" in it.
# What is bound there opens; a node that is made there does not: NVIDIA's libraries make what they
# miss, as the device cgroup lets nobody do in a container.
_DEV = """
set -e
dev=$1; shift
mount -t tmpfs -o mode=755,nodev none "$dev"
while [ "$1" != -- ]; do
    there=$dev/${1#/dev/}
    mkdir -p "$(dirname "$there")"
    if [ -d "$1" ]; then mkdir -p "$there"; else : > "$there"; fi
    mount --bind "$1" "$there"
    shift
done
shift
mount --rbind "$dev" /dev
exec "$@"
"""


def address(told: str) -> str:
    """A card's, spelled as ours"""
    return str(PciAddress.parse(told))


def obstacle() -> str | None:
    """Why there can be no mount namespace, ``None`` where there can"""
    try:
        done = subprocess.run(_namespace("true"), capture_output=True, text=True)
    except OSError as error:
        return f"no mount namespace can be made: {error}"
    return f"no mount namespace can be made: {done.stderr.strip()}" if done.returncode else None


def _namespace(*command: str) -> list[str]:
    return ["unshare", "--mount", "--propagation", "private", *command]


def cuda(given: Sequence[str], folder: pathlib.Path) -> str:
    """What ``cuda.py`` prints where /dev has *given* and what is no device of a card

    :raises subprocess.SubprocessError: where it prints nothing
    """
    dev = folder / "dev"
    dev.mkdir(exist_ok=True)
    present = [node for node in (*_COMMON, *given) if os.path.exists(node)]
    program = [sys.executable, str(_PROGRAM)]
    argv = _namespace("sh", "-c", _DEV, "sh", str(dev), *present, "--", *program)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=machine.TIMEOUT_S)
    if not done.stdout:
        raise subprocess.CalledProcessError(done.returncode, argv, stderr=done.stderr)
    return done.stdout


def no_libvirt() -> str | None:
    """Why libvirt runs no container here, ``None`` where it does"""
    if not shutil.which("virsh"):
        return "no container was run: virsh is not on PATH"
    done = subprocess.run([*_LIBVIRT, "version"], capture_output=True, text=True)
    said = (done.stderr.strip() or "no message").splitlines()[-1]
    return f"no container was run: libvirtd does not answer ({said})" if done.returncode else None


def container(given: GuestContents, folder: pathlib.Path) -> str:
    """What ``cuda.py`` prints in a container that has *given*, and the host's files to read. It is
    transient: nothing of it stays.

    :raises subprocess.SubprocessError: where libvirt makes none, or it does not end
    """
    shared, root = folder / "shared", folder / "root"
    for each in (shared, root):
        shutil.rmtree(each, ignore_errors=True)
        each.mkdir()
    program = shared / "init"
    command = f"'{sys.executable}' '{_PROGRAM}'"
    program.write_text(_INIT.format(folder=_SHARED, command=command))
    program.chmod(0o755)
    domain = _domain(given, root)
    domain.add_device(guest_config.GuestMount(str(shared), _SHARED, readonly=False))
    told = shared / "told"
    (folder / "domain.xml").write_text(domain.to_xml())
    machine.keep("domain.xml", domain.to_xml())
    create = [*_LIBVIRT, "create", str(folder / "domain.xml")]
    subprocess.run(create, check=True, capture_output=True, timeout=machine.TIMEOUT_S)
    deadline = time.monotonic() + machine.TIMEOUT_S
    try:
        while not told.exists():
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(create, machine.TIMEOUT_S)
            time.sleep(0.1)
    finally:
        subprocess.run([*_LIBVIRT, "destroy", domain.name], capture_output=True)
    return told.read_text()


def _domain(given: GuestContents, folder: pathlib.Path) -> vconfig.LibvirtConfigGuest:
    """Its root is *folder*, where it sees what the host has in its own."""
    domain = vconfig.LibvirtConfigGuest()
    domain.virt_type = "lxc"
    domain.uuid = str(uuid.uuid4())
    domain.name = f"nova-gpu-cuda-{domain.uuid[:8]}"
    domain.memory = 4096 * _MIB
    domain.vcpus = 1
    domain.os_type = vconfig.fields.VMMode.EXE
    domain.os_init_path = f"{_SHARED}/init"
    root = vconfig.LibvirtConfigGuestFilesys()
    root.source_dir, root.target_dir = str(folder), "/"
    domain.add_device(root)
    for path in pathlib.Path("/").iterdir():
        if path.is_symlink():
            (folder / path.name).symlink_to(path.readlink())
        elif path.is_dir() and path.name not in _CONTAINERS_OWN:
            domain.add_device(guest_config.GuestMount(str(path), str(path), readonly=True))
    console = vconfig.LibvirtConfigGuestConsole()
    console.type = "pty"
    domain.add_device(console)
    guest_config.isolate(domain)
    guest_config.add_nodes(domain, (), given)
    return domain
