# SPDX-License-Identifier: Apache-2.0
"""Runs a command in a root folder, with its own mount, UTS, IPC, PID and network namespaces.

Its mounts are never visible outside, so removing the root folder removes files only. If this
process is killed, the kernel kills all processes of the root and removes its mounts.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from lab.bare import network

# The path of the repository in the root.
CHECKOUT = "/root/nova-gpu"
_FIRST = Path(__file__).with_name("first.py")
_PROGRAMS = ("mount", "pivot_root", "setpriv", "unshare")
_NAMESPACES = ("--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child")
# tools/test gives a suite a minute to stop what it has started.
_PATIENCE_S = 120.0


def obstacle() -> str | None:
    """Return why this machine cannot run a command in such a root, ``None`` if it can."""
    if os.geteuid() != 0:
        return "needs root: it makes mounts and a root folder of its own"
    if missing := [name for name in _PROGRAMS if not shutil.which(name)]:
        return f"not found on PATH: {', '.join(missing)} (of Debian's util-linux and mount)"
    trial = "mount -t tmpfs tmpfs /mnt && mkdir /mnt/old && cd /mnt && pivot_root . old"
    argv = ["unshare", *_NAMESPACES, "sh", "-euc", trial]
    tried = subprocess.run(argv, capture_output=True, text=True, check=False)
    if tried.returncode:
        message = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
        return (
            f"this machine lets root make no mounts and processes of its own ({message}), as in a "
            "container without CAP_SYS_ADMIN: run it on a machine or in a VM"
        )
    return None


def script(root: Path, bound: Iterable[Path], *, has_network: bool = False) -> str:
    """Return a shell script that makes *root* the root folder and becomes its first process."""
    quoted = shlex.quote(str(root))
    lines = [
        *([network.WAIT] if has_network else []),
        "mount --make-rprivate /",
        # The root is a mount of its own, as libvirtd expects.
        f"mount --bind {quoted} {quoted}",
        f"cd {quoted}",
        "mount --rbind /sys sys",
        "mount --rbind /dev dev",
        "mount -t proc proc proc",
        "mount -t tmpfs -o mode=0755 tmpfs run",
        # As on an installed Debian 13, because the suites make many small files. If a file of the
        # machine was copied there, it must stay visible.
        """test "$(ls -A tmp)" || mount -t tmpfs -o mode=1777,nosuid tmpfs tmp""",
        "mkdir -p run/lock .old",
    ]
    for path in bound:
        inside = shlex.quote(f".{path}")
        lines += [
            f"mkdir -p {inside}",
            f"mount --bind {shlex.quote(str(path))} {inside}",
            f"mount -o remount,bind,ro {inside}",
        ]
    # Processes in the root must not see this variable.
    lines += ["pivot_root . .old", "umount --lazy /.old", "rmdir /.old"]
    first = f'/usr/bin/python3 -c "$FIRST" {CHECKOUT} "$@"'
    return "\n".join([*lines, f"exec env --unset=FIRST {first}"])


def run(
    root: Path,
    command: Sequence[str],
    variables: Mapping[str, str],
    bound: Iterable[Path],
    *,
    has_network: bool = False,
) -> int:
    """Run *command* in *root*; return its exit status, or 128 plus the signal that ended it.

    If this process receives SIGTERM or SIGHUP, the command receives SIGTERM, and has two minutes to
    end. No process of the root runs afterwards.
    """
    environment = {
        "HOME": "/root",
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        **variables,
        "FIRST": _FIRST.read_text(),
    }
    # If this process is killed, the processes in the root are killed too.
    own = ("--net",) if has_network else ()
    tied = ("setpriv", "--pdeathsig", "KILL", "--", "unshare", *_NAMESPACES, *own)
    text = script(root, bound, has_network=has_network)
    argv = [*tied, "sh", "-euc", text, "bare", *command]
    sys.stdout.flush()
    with _EndSignals() as signals, contextlib.ExitStack() as stack:
        # The first process must not receive a signal before it can pass it on.
        child = subprocess.Popen(argv, env=environment, preexec_fn=_block_sigterm)
        try:
            if has_network:
                stack.enter_context(network.attached(child.pid))
            while child.poll() is None:
                if signals.deadline and time.monotonic() > signals.deadline:
                    break
                if signals.is_new:
                    signals.is_new = not _terminate(child.pid)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(0.2)
        finally:
            child.kill()
            child.wait()
    return signals.status or (child.returncode if child.returncode >= 0 else 128 - child.returncode)


class _EndSignals:
    """A context that notes the signals that ask this process to end, instead of ending.

    ``status`` is the exit status after such a signal, else 0; ``is_new``: it must be passed on.
    """

    def __init__(self) -> None:
        self.status = 0
        self.is_new = False
        self.deadline = 0.0
        self._before: dict[int, object] = {}

    def __enter__(self) -> _EndSignals:
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: types.FrameType | None) -> None:
        # A signal from a terminal reaches the command directly.
        self.is_new = number != signal.SIGINT or not sys.stdin.isatty()
        self.status = 128 + number
        self.deadline = time.monotonic() + _PATIENCE_S


def _block_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _terminate(parent: int) -> bool:
    """Send SIGTERM to the child of *parent*, the root's first process, if it exists yet.

    Return whether it exists.
    """
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for pid in children:
            os.kill(int(pid), signal.SIGTERM)
        return bool(children)
    return False
