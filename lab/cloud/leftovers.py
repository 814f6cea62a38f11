# SPDX-License-Identifier: Apache-2.0
"""Finds and removes what one lab has on this machine: processes, mounts, loop devices, cgroups.

A lab's processes are recognised by its *tag*, whatever process started them and whatever their pid
files say. The tag is in the environment of all processes that the lab starts. libvirt, sudo and
Nova clean the environment, so the tag is also the source of a mount in the lab's mount namespaces,
which all processes in these, or in namespaces derived from these, have.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import os
import pathlib
import re
import signal
import subprocess
import time

from lab.cloud import cgroups

ENVIRONMENT = "NOVA_GPU_LAB"
# The folder of a private libvirtd's logs, one for each guest.
GUEST_LOGS = "libvirt/log/lxc"
# In such a log; then libvirt makes the guest's control groups, on a busy machine some time later.
_STARTED = re.compile(r"^([\d-]+ [\d:.]+\+0000): starting up", re.MULTILINE)
_START_S = 60.0
_PROC = pathlib.Path("/proc")


def tag(folder: pathlib.Path) -> str:
    """Return the tag of the lab in *folder*: a text that mountinfo shows unchanged."""
    return "nova-gpu-lab-" + hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Process:
    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})"


def command(pid: int, proc: pathlib.Path = _PROC) -> str:
    """Return the first 100 characters of the command line of process *pid*; empty without one."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
        text = b" ".join(words).decode(errors="replace").strip()
        return text[:100] or (proc / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def is_alive(pid: int, proc: pathlib.Path = _PROC) -> bool:
    """Return whether the process *pid* exists and is not a zombie."""
    try:
        return (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def belongs(pid: int, lab: str, proc: pathlib.Path = _PROC) -> bool:
    """Return whether the process *pid* is of the lab with the tag *lab*."""
    entry = proc / str(pid)
    with contextlib.suppress(OSError):
        if f"{ENVIRONMENT}={lab}".encode() in (entry / "environ").read_bytes().split(b"\0"):
            return True
    with contextlib.suppress(OSError):
        return any(m.source == lab for m in cgroups.mounts((entry / "mountinfo").read_text()))
    return False


def _ancestors(pid: int) -> set[int]:
    pids = set()
    while pid > 0:
        pids.add(pid)
        pid = int((_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    return pids


def processes(lab: str, proc: pathlib.Path = _PROC) -> list[Process]:
    """Return all processes of the lab with the tag *lab*, but this one and its ancestors."""
    mine = _ancestors(os.getpid())
    pids = (int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())
    return sorted(
        Process(pid, command(pid, proc))
        for pid in pids
        if pid not in mine and is_alive(pid, proc) and belongs(pid, lab, proc)
    )


def named(name: str) -> list[Process]:
    """Return all processes of this machine whose program is called *name*."""
    pids = sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    processes_ = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if (_PROC / str(pid) / "comm").read_text().strip() == name:
                processes_.append(Process(pid, command(pid)))
    return processes_


def end(lab: str, patience_s: float = 5.0, proc: pathlib.Path = _PROC) -> list[Process]:
    """End all processes of the lab with the tag *lab*, and return them.

    Those that still run *patience_s* seconds after SIGTERM are killed.
    """
    ended = processes(lab, proc)
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + patience_s
        for process in processes(lab, proc):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
        while processes(lab, proc):
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        else:
            break
    return ended


def loop_devices(folder: pathlib.Path) -> list[str]:
    """Return a text for each loop device with a backing file in *folder*: both paths."""
    devices = []
    for backing in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            file = backing.read_text().strip()
            if pathlib.Path(file).is_relative_to(folder):
                devices.append(f"/dev/{backing.parts[3]} ({file})")
    return sorted(devices)


def mounts(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the mount points in *folder* in this process's mount namespace, the deepest first."""
    table = cgroups.mounts((_PROC / "self/mountinfo").read_text())
    return sorted((m.target for m in table if m.target.is_relative_to(folder)), reverse=True)


def guest_groups(folder: pathlib.Path) -> list[cgroups.GuestGroup]:
    """Return the control groups that ended LXC guests of the lab in *folder* left.

    The name of a group has that of its guest, but a guest of another lab may have the same. So the
    times of the guest's starts, in the log that its libvirtd writes in *folder*, are compared.
    """
    logs = {
        log.stem: log.read_text(errors="replace") for log in (folder / GUEST_LOGS).glob("*.log")
    }
    return [
        group
        for group in cgroups.all_guest_groups()
        if not is_alive(group.controller_pid)
        and not group.pids
        and made_by(logs.get(group.domain, ""), group.path)
    ]


def made_by(log: str, path: pathlib.Path) -> bool:
    """Return whether the control group *path* was made within a minute of a start in *log*."""
    with contextlib.suppress(OSError):
        made = path.stat().st_mtime
        starts = (datetime.datetime.fromisoformat(text) for text in _STARTED.findall(log))
        return any(0 <= made - start.timestamp() < _START_S for start in starts)
    return False


def found(folder: pathlib.Path) -> list[str]:
    """Return texts about all that the lab in *folder* has on this machine."""
    return [
        *(str(process) for process in processes(tag(folder))),
        *(f"mount {path}" for path in mounts(folder)),
        *(f"loop device {device}" for device in loop_devices(folder)),
        *(f"cgroup {group.path}" for group in guest_groups(folder)),
    ]


def _detach_loops(folder: pathlib.Path, patience_s: float = 5.0) -> None:
    """Detach loop devices with a backing file in *folder*, until none is left.

    That takes time: the kernel removes a mount namespace some time after its last process ended.
    """
    deadline = time.monotonic() + patience_s
    while (devices := loop_devices(folder)) and time.monotonic() < deadline:
        for device in devices:
            subprocess.run(["losetup", "--detach", device.split()[0]], check=False)
        time.sleep(0.05)


def clear(folder: pathlib.Path) -> list[str]:
    """Remove all that :func:`found` finds, and return those texts."""
    cleared = found(folder)
    end(tag(folder))
    for path in mounts(folder):
        subprocess.run(["umount", "--lazy", str(path)], check=False)
    _detach_loops(folder)
    for group in guest_groups(folder):
        with contextlib.suppress(OSError):
            cgroups.remove(group)
    return cleared
