# SPDX-License-Identifier: Apache-2.0
"""Runs programs inside a guest, and tries as its root to open devices that it was not given."""

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
    """One way to another guest's device, and the result of trying it."""

    way: str
    refused: bool
    message: str


def init_pid(lv: libvirtd.PrivateLibvirtd, domain: str) -> int:
    """Return the host's pid of the guest's process 1.

    :raises subprocess.CalledProcessError: if no such domain runs
    """
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
    """Run *argv* in the guest, as the guest's user *uid*.

    It runs in all namespaces of the guest, the user namespace included, and in its control groups.

    ``virsh lxc-enter-namespace`` does not change the user id: in a user namespace the program would
    have no user and no capability, so it would not act as the guest's root.
    """
    pid = init_pid(lv, domain)
    enter = ["nsenter", f"--target={pid}", "--all", f"--setuid={uid}", f"--setgid={uid}"]
    return _join(lv, pid, [*enter, "--", *argv])


def made_nodes(
    lv: libvirtd.PrivateLibvirtd, domain: str, devices: Sequence[nodes.Node]
) -> list[Attempt]:
    """Make a node for each of *devices* as the guest's root, open it, and return the results."""
    argv = [f"{device.major}:{device.minor}" for device in devices]
    lines = run(lv, domain, ["/bin/sh", "-c", _MAKE, "make", *argv]).stdout.splitlines()
    return [
        Attempt(f"mknod {device.name}", os.strerror(errno.EPERM) in text, text)
        for device, text in zip(devices, lines, strict=True)
    ]


def open_from_cgroup(
    lv: libvirtd.PrivateLibvirtd, domain: str, opened: Sequence[nodes.Node]
) -> list[int]:
    """Open each of the host's nodes from the guest's control groups; return the errno of each.

    0 is success. The test runs with the host's root user and files, so that only the device cgroup
    decides. EPERM is a refusal; ENXIO and ENODEV mean that the cgroup permits the access, but the
    number has no driver.

    :raises subprocess.CalledProcessError: if the test could not run
    """
    paths = [node.path for node in opened]
    result = _join(lv, init_pid(lv, domain), ["/usr/bin/python3", "-c", _OPEN, *paths])
    result.check_returncode()
    return [int(number) for number in result.stdout.split()]


def escapes(
    lv: libvirtd.PrivateLibvirtd, domain: str, node: nodes.Node, pci_address: str = "-"
) -> list[Attempt]:
    """Try every known way for root in the guest to open *node*, which it was not given.

    :raises RuntimeError: if the test itself did not run, so that silence does not count as a
        refusal
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
    """Return the network namespaces of the guest and of libvirtd, as ``net:[4026531840]``."""
    guest, host = (
        os.readlink(_PROC / str(pid) / "ns/net") for pid in (init_pid(lv, domain), lv.pid)
    )
    return guest, host
