# SPDX-License-Identifier: Apache-2.0
"""Remains of one lab on this machine: processes, mounts, loop devices, control groups.

A lab is identified by its tag. The tag is in the environment of all processes that the lab starts,
and it is the source of the filesystem mounted over /dev in its mount namespace: libvirt, sudo and
Nova clean the environment, but a process in that namespace, or in one derived from it, keeps the
mount. So the lab's processes are found whatever process started them and whatever their pid files
say.
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
    """Return the tag of the lab in *folder*, in characters that mountinfo does not escape."""
    return "nova-gpu-lab-" + hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:12]


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Process:
    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})"


def command(pid: int, proc: pathlib.Path = _PROC) -> str:
    """Return the process's command line, shortened; empty if there is no such process."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().split(b"\0")
        text = b" ".join(words).decode(errors="replace").strip()
        return text[:100] or (proc / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def is_alive(pid: int, proc: pathlib.Path = _PROC) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        return (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def belongs(pid: int, lab: str, proc: pathlib.Path = _PROC) -> bool:
    """Return whether the process belongs to the lab with the tag *lab*."""
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
    """Return the lab's processes, without this process and its ancestors."""
    mine = _ancestors(os.getpid())
    pids = (int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())
    return sorted(
        Process(pid, command(pid, proc))
        for pid in pids
        if pid not in mine and is_alive(pid, proc) and belongs(pid, lab, proc)
    )


def named(name: str) -> list[Process]:
    """Return all processes of the program *name*."""
    pids = sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    processes_ = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if (_PROC / str(pid) / "comm").read_text().strip() == name:
                processes_.append(Process(pid, command(pid)))
    return processes_


def end(lab: str, patience_s: float = 5.0, proc: pathlib.Path = _PROC) -> list[Process]:
    """End all processes of the lab, and return them.

    Those that ignore SIGTERM are killed.
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
    """Return each loop device backed by a file in *folder*, as text with its file."""
    devices = []
    for backing in pathlib.Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            file = backing.read_text().strip()
            if pathlib.Path(file).is_relative_to(folder):
                devices.append(f"/dev/{backing.parts[3]} ({file})")
    return sorted(devices)


def mounts(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the mount points in *folder* that this process sees, the deepest first."""
    table = cgroups.mounts((_PROC / "self/mountinfo").read_text())
    return sorted((m.target for m in table if m.target.is_relative_to(folder)), reverse=True)


def guest_groups(folder: pathlib.Path) -> list[cgroups.GuestGroup]:
    """Return the control groups of guests of *folder*'s libvirtd whose controller has ended.

    Such a guest is recognised by its log, which stays when everything else of it has been removed.
    A guest of another lab may have its name, and processes that are not seen from a bare root.
    """
    logs = {
        log.stem: log.read_text(errors="replace") for log in (folder / GUEST_LOGS).glob("*.log")
    }
    hierarchies = cgroups.hierarchies((_PROC / "self/mountinfo").read_text())
    groups = [group for hierarchy in hierarchies for group in cgroups.guest_groups(hierarchy)]
    return [
        group
        for group in groups
        if not is_alive(group.controller_pid)
        and not group.pids
        and made_by(logs.get(group.domain, ""), group.path)
    ]


def made_by(log: str, path: pathlib.Path) -> bool:
    """Return whether a start in the guest's *log* made the control group *path*."""
    with contextlib.suppress(OSError):
        made = path.stat().st_mtime
        starts = (datetime.datetime.fromisoformat(text) for text in _STARTED.findall(log))
        return any(0 <= made - start.timestamp() < _START_S for start in starts)
    return False


def found(folder: pathlib.Path) -> list[str]:
    """Return all that remains of the lab in *folder*, as text."""
    return [
        *(str(process) for process in processes(tag(folder))),
        *(f"mount {path}" for path in mounts(folder)),
        *(f"loop device {device}" for device in loop_devices(folder)),
        *(f"cgroup {group.path}" for group in guest_groups(folder)),
    ]


def _detach_loops(folder: pathlib.Path, patience_s: float = 5.0) -> None:
    """Detach the loop devices of the lab, and wait until they are gone.

    The kernel removes a mount namespace some time after its last process has ended.
    """
    deadline = time.monotonic() + patience_s
    while (devices := loop_devices(folder)) and time.monotonic() < deadline:
        for device in devices:
            subprocess.run(["losetup", "--detach", device.split()[0]], check=False)
        time.sleep(0.05)


def clear(folder: pathlib.Path) -> list[str]:
    """Remove what :func:`found` lists, and return that."""
    cleared = found(folder)
    end(tag(folder))
    for path in mounts(folder):
        subprocess.run(["umount", "--lazy", str(path)], check=False)
    _detach_loops(folder)
    for group in guest_groups(folder):
        with contextlib.suppress(OSError):
            cgroups.remove(group)
    return cleared
