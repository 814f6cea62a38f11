# SPDX-License-Identifier: Apache-2.0
"""Runs programs in an LXC guest, and tries as its root to open other guests' devices."""

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
# Moves the shell into the control groups before "--" and executes the command after it.
_JOIN = 'while [ "$1" != -- ]; do echo $$ >"$1"; shift; done; shift; exec "$@"'
# One line of output for each argument.
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
    """One way to open another guest's device, and the result of trying it in a guest.

    ``message`` is the error, or what the attempt printed.
    """

    way: str
    refused: bool
    message: str


def init_pid(lv: libvirtd.PrivateLibvirtd, domain: str) -> int:
    """Return the pid, on the host, of the guest's first process."""
    controller = int(lv.virsh("domid", domain))
    children = _PROC / str(controller) / "task" / str(controller) / "children"
    return int(children.read_text().split()[0])


def enter(pid: int, kind: str) -> None:
    """Move the calling thread into a namespace of the process *pid*.

    :param kind: the namespace's name in ``/proc/<pid>/ns``. Only a process with one thread can
        enter ``mnt``
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
    """Run *argv* in the guest as its user *uid*, in all of its namespaces and control groups.

    ``virsh lxc-enter-namespace`` is no alternative. It does not change the user id, so in a user
    namespace the program would not have the capabilities of the guest's root.
    """
    pid = init_pid(lv, domain)
    enter = ["nsenter", f"--target={pid}", "--all", f"--setuid={uid}", f"--setgid={uid}"]
    return _join(lv, pid, [*enter, "--", *argv])


def make_nodes(
    lv: libvirtd.PrivateLibvirtd, domain: str, devices: Sequence[nodes.Node]
) -> list[Attempt]:
    """Make a node for each of *devices* in the guest as its root, and try to open the node."""
    argv = [f"{device.major}:{device.minor}" for device in devices]
    lines = run(lv, domain, ["/bin/sh", "-c", _MAKE, "make", *argv]).stdout.splitlines()
    return [
        Attempt(f"mknod {device.name}", os.strerror(errno.EPERM) in text, text)
        for device, text in zip(devices, lines, strict=True)
    ]


def open_from_cgroup(
    lv: libvirtd.PrivateLibvirtd, domain: str, opened: Sequence[nodes.Node]
) -> list[int]:
    """Open nodes of the host in the guest's control groups; return an errno for each, 0 for none.

    The opening process has the host's root user and files, so that only the guest's device cgroup
    decides. EPERM is a refusal; ENXIO and ENODEV mean that the cgroup permits the access, but the
    node has no driver.
    """
    paths = [node.path for node in opened]
    result = _join(lv, init_pid(lv, domain), ["/usr/bin/python3", "-c", _OPEN, *paths])
    result.check_returncode()
    return [int(number) for number in result.stdout.split()]


def escapes(
    lv: libvirtd.PrivateLibvirtd, domain: str, node: nodes.Node, pci_address: str = "-"
) -> list[Attempt]:
    """Try every known way in which the guest's root could open *node*, of another guest.

    :param pci_address: the address of the node's card, ``-`` for a card that is only pretended
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
    """Return the network namespaces of the guest and of the host, as ``net:[4026531840]``."""
    guest, host = (
        os.readlink(_PROC / str(pid) / "ns/net") for pid in (init_pid(lv, domain), lv.pid)
    )
    return guest, host
