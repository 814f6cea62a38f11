# SPDX-License-Identifier: Apache-2.0
"""Starts, checks and ends the lab's daemons, each with a session, a pid file and a log of its own.

All run in a mount namespace with the lab's tag (:mod:`lab.cloud.leftovers`), because some overwrite
the environment they were started with. nova-compute runs in that of its libvirtd, which must see
its mounts; each other daemon runs in one of its own.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence

from lab.cloud import leftovers, libvirtd, settings, steps


def pid_file(lab: settings.Lab, name: str) -> pathlib.Path:
    return lab.folder / "pids" / name


def log_file(lab: settings.Lab, name: str) -> pathlib.Path:
    return lab.log / f"{name}.log"


def pid(lab: settings.Lab, name: str) -> int | None:
    """Return the pid of the daemon *name* if it runs, else ``None``.

    Another process that got the pid in its pid file does not count.
    """
    with contextlib.suppress(OSError, ValueError):
        number = int(pid_file(lab, name).read_text())
        if number in _children:
            # The child object is asked, because /proc has no environment yet for a new process.
            return number if _children[number].poll() is None else None
        if leftovers.is_alive(number) and any(leftovers.belongs(number, tag) for tag in tags(lab)):
            return number
    return None


def tags(lab: settings.Lab) -> list[str]:
    """Return the tags of the lab and its compute hosts, of which each process has one."""
    return [lab.tag, *(host.tag for host in lab.hosts)]


def as_user(user: str, argv: Sequence[str]) -> list[str]:
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--", *argv]


def start(
    lab: settings.Lab,
    name: str,
    argv: Sequence[str],
    environment: Mapping[str, str] | None = None,
    host: libvirtd.PrivateLibvirtd | None = None,
) -> None:
    """Start the daemon *name* by the command *argv*, which must stay in the foreground.

    :param host: the libvirtd of the compute host on which it runs, ``None`` for the controller
    """
    argv = host.enter(argv) if host else _in_namespace(lab, argv)
    tag = host.tag if host else lab.tag
    for path in (pid_file(lab, name), log_file(lab, name)):
        path.parent.mkdir(parents=True, exist_ok=True)
    with log_file(lab, name).open("wb") as log:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**lab.environment(), **(environment or {}), leftovers.ENVIRONMENT: tag},
            cwd="/",
            start_new_session=True,
        )
    pid_file(lab, name).write_text(f"{child.pid}\n")
    _children[child.pid] = child


def _in_namespace(lab: settings.Lab, argv: Sequence[str]) -> list[str]:
    """Return the command that runs *argv* in a new mount namespace with the lab's tag."""
    mark = lab.folder / "mark"
    mark.mkdir(parents=True, exist_ok=True)
    script = f'mount -t tmpfs -o size=4k {lab.tag} {shlex.quote(str(mark))} && exec "$@"'
    return ["unshare", "--mount", "--propagation=private", "sh", "-euc", script, "sh", *argv]


# The processes that this run of the lab has started, by pid.
_children: dict[int, subprocess.Popen[bytes]] = {}


def check(lab: settings.Lab, name: str) -> None:
    """Check that the daemon *name* runs."""
    if pid(lab, name) is None:
        raise steps.Failed(f"{name} has ended: see {log_file(lab, name)}")


def kill(lab: settings.Lab, name: str) -> None:
    """Kill the daemon *name* with SIGKILL, as a power cut would, and wait for its end."""
    number = pid(lab, name)
    if number is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
        steps.wait_for(f"{name} to end", lambda: pid(lab, name) is None)
    pid_file(lab, name).unlink(missing_ok=True)


def stop(lab: settings.Lab, name: str, timeout_s: float = 20.0) -> None:
    """End the daemon *name*: with SIGTERM, and after *timeout_s* seconds with SIGKILL."""
    number = pid(lab, name)
    if number is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGTERM)
        try:
            steps.wait_for(f"{name} to end", lambda: pid(lab, name) is None, timeout_s, 0.05)
        except steps.Failed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
    pid_file(lab, name).unlink(missing_ok=True)
