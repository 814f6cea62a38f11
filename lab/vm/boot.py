# SPDX-License-Identifier: Apache-2.0
"""One command in a VM that is booted for it; again where the VM itself failed."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import pathlib
import re
import secrets
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from lab.vm import cards, monitor
from lab.vm.vm import VM

RETRIES = 3
_POLL_S = 0.2
_RESUME_S = 300.0
_EXIT = re.compile(r"^labvm: EXIT (\d+)", re.MULTILINE)
_PANIC = re.compile(r"Kernel panic - not syncing[^\r\n]*|BUG: [^\r\n]*|Oops: [^\r\n]*")
# No VM outlives who booted it, however that one ends.
TIED = ("setpriv", "--pdeathsig", "KILL", "--")
_ENVIRONMENT = {
    "PATH": "/opt/nova/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH": "/project",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "VFIOLAB": "1",
}


class End(enum.Enum):
    """The end of a boot.

    A panic is the emulator's fault or the kernel's, and says nothing of what ran; a limit does.
    """

    EXIT = "it ended"
    PANIC = "the VM's kernel panicked"
    LOST = "the VM ended without a word"
    LIMIT = "its time was up"
    EMULATOR = "QEMU failed"


@dataclasses.dataclass(frozen=True, slots=True)
class Boot:
    """``status`` is the command's exit status where it had one. ``reason``: of a panic."""

    end: End
    status: int | None
    seconds: float
    reason: str = ""

    @property
    def is_valid(self) -> bool:
        return self.end in (End.EXIT, End.LIMIT, End.EMULATOR)


def run(
    vm: VM,
    command: Sequence[str],
    out: pathlib.Path,
    *,
    limit_s: float,
    environment: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
    retries: int = RETRIES,
    on_output: Callable[[str], None],
    on_retry: Callable[[Boot], None],
) -> Boot:
    """Return the last boot: the first valid one, or after as many as *retries* further ones.

    *command*, of a saved VM a module and its arguments, runs in /project and may write to *out*,
    which is /out in the VM and stays from one boot to the next, so that it can go on where it was.
    What it prints is passed to *on_output*.
    Who sets *stop*, in another thread, ends it as if its time were up.
    """
    (write_module if vm.saved else write_command)(out, command, environment or {})
    deadline = time.monotonic() + limit_s
    stop = stop or threading.Event()

    def goes_on() -> bool:
        return not stop.is_set() and time.monotonic() < deadline

    for attempt in range(retries + 1):
        boot = _once(vm, out, goes_on, on_output)
        if boot.is_valid or attempt == retries:
            break
        on_retry(boot)
    return boot


def variables() -> dict[str, str]:
    """Return QEMU's environment, by which the copied emulator finds its modules."""
    return {**os.environ, "QEMU_MODULE_DIR": "/usr/lib/x86_64-linux-gnu/qemu"}


def write_module(out: pathlib.Path, words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Write what a VM runs that was saved: a module and its arguments."""
    job = {"words": words, "environment": {**_ENVIRONMENT, **environment}}
    (out / "module.json").write_text(json.dumps(job))


def write_command(
    out: pathlib.Path, command: Sequence[str], environment: Mapping[str, str]
) -> None:
    exported = {**_ENVIRONMENT, **environment}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in exported.items()]
    (out / "command").write_text("\n".join([*lines, f"exec {shlex.join(command)}"]) + "\n")


def verdict(console: str) -> tuple[End, int | None, str]:
    """Return what the console of a VM that is off says of its end.

    The command's status is the last word: a warning of the kernel before it is none of its end.
    """
    if match := _EXIT.search(console):
        return End.EXIT, int(match[1]), ""
    if match := _PANIC.search(console):
        return End.PANIC, None, match[0]
    return End.LOST, None, ""


def _once(
    vm: VM, out: pathlib.Path, goes_on: Callable[[], bool], on_output: Callable[[str], None]
) -> Boot:
    console, output = out / "console", out / "output"
    console.write_bytes(b"")
    output.touch()
    talk = monitor.Monitor() if vm.saved else None
    argv = [*TIED, *vm.arguments(out, console), *(talk.arguments if talk else ())]
    started = time.monotonic()
    with (
        output.open(encoding="utf-8", errors="replace") as source,
        (out / "qemu.log").open("wb") as log,
    ):
        source.seek(0, os.SEEK_END)
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=variables(),
            pass_fds=talk.fds if talk else (),
        )
        try:
            if talk:
                _resume(vm, talk)
            while child.poll() is None and goes_on():
                time.sleep(_POLL_S)
                on_output(source.read())
            end, status, reason = verdict(console.read_text(errors="replace"))
            if end is not End.EXIT and not goes_on():
                end, reason = End.LIMIT, ""
            elif end is not End.EXIT and child.returncode:
                end, reason = End.EMULATOR, (out / "qemu.log").read_text(errors="replace")[-500:]
        except monitor.Refused as error:
            end, status, reason = End.EMULATOR, None, str(error)
        finally:
            child.kill()
            child.wait()
            if talk:
                talk.close()
        on_output(source.read())
    return Boot(end, status, time.monotonic() - started, reason)


def _resume(vm: VM, talk: monitor.Monitor) -> None:
    """Make the saved VM, whose QEMU was just started, go on.

    :raises monitor.Refused: where QEMU does not
    """
    talk.begin()
    talk.wait("query-status", "paused", _RESUME_S)
    talk.ask("cont")
    for card in cards.late():
        talk.ask("device_add", **card)
    words = [f"{time.time():.3f}", *vm.told()]
    talk.tell(json.dumps({"seed": secrets.token_hex(32), "words": words}))
