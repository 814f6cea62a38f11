# SPDX-License-Identifier: Apache-2.0
"""Inside a guest: run a program there, and try as its root to get what is not its own."""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import os
import pathlib
import subprocess
from collections.abc import Sequence

from lab.cloud import cgroups, libvirtd, nodes

_PROBE = pathlib.Path(__file__).with_name("probe.sh")
_PROC = pathlib.Path("/proc")
_TIMEOUT_S = 60
# Moves the shell into the control groups named before "--" and becomes what is named after it.
_JOIN = 'while [ "$1" != -- ]; do echo $$ >"$1"; shift; done; shift; exec "$@"'
# One line for each, of the shell's words.
_MAKE = """
for number; do
    rm -f /tmp/n
    said=$( (mknod /tmp/n c ${number%:*} ${number#*:} && : </tmp/n) 2>&1)
    echo "$number: $said"
done
"""
_OPEN = """
import os, sys
for path in sys.argv[1:]:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        print(0)
    except OSError as error:
        print(error.errno)
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """One way to a device that is another's, and what came of it."""

    way: str
    refused: bool
    message: str


def init_pid(lv: libvirtd.PrivateLibvirtd, domain: str) -> int:
    """Return the guest's process 1 as the host counts.

    :raises subprocess.CalledProcessError: where no such domain runs
    """
    controller = int(lv.virsh("domid", domain))
    children = _PROC / str(controller) / "task" / str(controller) / "children"
    return int(children.read_text().split()[0])


def enter(pid: int, kind: str) -> None:
    """Move the calling thread into a namespace of the process *pid*.

    :param kind: its name in ``/proc/<pid>/ns``. Into ``mnt`` only a process of one thread gets
    :raises OSError: from setns(2)
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/{kind}") as namespace:
        if libc.setns(namespace.fileno(), 0):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def _join(
    lv: libvirtd.PrivateLibvirtd, pid: int, argv: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    mountinfo = (_PROC / str(lv.pid) / "mountinfo").read_text()
    files = cgroups.procs_files(mountinfo, (_PROC / str(pid) / "cgroup").read_text())
    return subprocess.run(
        lv.enter(["sh", "-euc", _JOIN, "join", *map(str, files), "--", *argv]),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )


def run(
    lv: libvirtd.PrivateLibvirtd, domain: str, argv: Sequence[str], uid: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run *argv* in the guest, as the guest's user *uid*.

    In all its namespaces, the user's included, and in its control groups.

    ``virsh lxc-enter-namespace`` does not change the user id: in a user namespace the program
    would have no user and no capability, and the guest's root would not have been tried.
    """
    pid = init_pid(lv, domain)
    enter = ["nsenter", f"--target={pid}", "--all", f"--setuid={uid}", f"--setgid={uid}"]
    return _join(lv, pid, [*enter, "--", *argv])


def made_nodes(
    lv: libvirtd.PrivateLibvirtd, domain: str, devices: Sequence[nodes.Node]
) -> list[Attempt]:
    """Return what happens when the guest's root makes a node for each of *devices* and opens it."""
    argv = [f"{device.major}:{device.minor}" for device in devices]
    lines = run(lv, domain, ["/bin/sh", "-c", _MAKE, "make", *argv]).stdout.splitlines()
    return [
        Attempt(f"mknod {device.name}", os.strerror(errno.EPERM) in text, text)
        for device, text in zip(devices, lines, strict=True)
    ]


def open_from_cgroup(
    lv: libvirtd.PrivateLibvirtd, domain: str, opened: Sequence[nodes.Node]
) -> list[int]:
    """Return the errno of opening each of the host's nodes from the guest's control groups.

    0 is none. It is done with the host's root and files: what remains is the device cgroup's
    verdict. EPERM refuses; ENXIO and ENODEV come from a number without a driver, after the cgroup
    has agreed.

    :raises subprocess.CalledProcessError: where it could not be tried
    """
    paths = [node.path for node in opened]
    result = _join(lv, init_pid(lv, domain), ["/usr/bin/python3", "-c", _OPEN, *paths])
    result.check_returncode()
    return [int(number) for number in result.stdout.split()]


def escapes(
    lv: libvirtd.PrivateLibvirtd, domain: str, node: nodes.Node, pci_address: str = "-"
) -> list[Attempt]:
    """Return every way known for root in the guest to the device *node* that it was not given.

    :raises RuntimeError: where the probe itself did not run, so that silence is no refusal
    """
    words = [node.path, str(node.major), str(node.minor), pci_address]
    result = run(lv, domain, ["/bin/sh", "-c", _PROBE.read_text(), "probe", *words])
    attempts = []
    for line in result.stdout.splitlines():
        way, verdict, message = line.split("\t", 2)
        attempts.append(Attempt(way, verdict == "refused", message))
    if result.returncode or not attempts:
        raise RuntimeError(f"the probe in {domain} failed: {result.stderr or result.stdout}")
    (number,) = open_from_cgroup(lv, domain, [node])
    refused = number == errno.EPERM
    attempts.append(Attempt("open past /dev, device cgroup alone", refused, os.strerror(number)))
    return attempts


def network_namespaces(lv: libvirtd.PrivateLibvirtd, domain: str) -> tuple[str, str]:
    """Return the guest's and libvirtd's, as ``net:[4026531840]``."""
    guest, host = (
        os.readlink(_PROC / str(pid) / "ns/net") for pid in (init_pid(lv, domain), lv.pid)
    )
    return guest, host
