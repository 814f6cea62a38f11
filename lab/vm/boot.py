# SPDX-License-Identifier: Apache-2.0
"""Runs one command in a VM that is booted for it, and boots again if the VM itself failed."""

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
import time
from collections.abc import Callable, Mapping, Sequence

from lab.vm import cards, monitor
from lab.vm.vm import VM

RETRIES = 3
_POLL_S = 0.2
_RESUME_S = 300.0
_EXIT = re.compile(r"^labvm: EXIT (\d+)", re.MULTILINE)
_PANIC = re.compile(r"Kernel panic - not syncing[^\r\n]*|BUG: [^\r\n]*|Oops: [^\r\n]*")
# The VM ends with the process that booted it, however that ends.
TIED = ("setpriv", "--pdeathsig", "KILL", "--")
_ENVIRONMENT = {
    "PATH": "/opt/nova/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH": "/project",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "VFIOLAB": "1",
}


class End(enum.Enum):
    """How a boot ended.

    A panic is the fault of the emulator or the kernel, and tells nothing about the command; a time
    limit does.
    """

    EXIT = "it ended"
    PANIC = "the VM's kernel panicked"
    LOST = "the VM ended without a word"
    LIMIT = "its time was up"
    EMULATOR = "QEMU failed"


@dataclasses.dataclass(frozen=True, slots=True)
class Boot:
    """The result of one boot.

    ``status`` is the command's exit status, ``None`` if it did not end. ``reason`` is the kernel's
    text at a panic.
    """

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
    retries: int = RETRIES,
    on_output: Callable[[str], None],
    on_retry: Callable[[Boot], None],
) -> Boot:
    """Boot the VM and run *command* in it, again if the VM itself failed; return the last boot.

    It is the first valid one, or the last of *retries* further ones. For a saved VM *command* is a
    module and its arguments. The command runs in /project and may write to *out*, which is /out in
    the VM and stays from one boot to the next, so that the command can continue.
    """
    (write_module if vm.saved else write_command)(out, command, environment or {})
    deadline = time.monotonic() + limit_s

    def goes_on() -> bool:
        return time.monotonic() < deadline

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
    """Write the module, and its arguments, that a saved VM runs."""
    job = {"words": words, "environment": {**_ENVIRONMENT, **environment}}
    (out / "module.json").write_text(json.dumps(job))


def write_command(
    out: pathlib.Path, command: Sequence[str], environment: Mapping[str, str]
) -> None:
    exported = {**_ENVIRONMENT, **environment}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in exported.items()]
    (out / "command").write_text("\n".join([*lines, f"exec {shlex.join(command)}"]) + "\n")


def verdict(console: str) -> tuple[End, int | None, str]:
    """Return how the VM ended, the command's exit status, and the reason, from the VM's console.

    If the console has the exit status, a kernel warning before it does not count.
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
    """Let the saved VM, whose QEMU was just started, continue."""
    talk.begin()
    talk.wait("query-status", "paused", _RESUME_S)
    talk.ask("cont")
    for card in cards.late():
        talk.ask("device_add", **card)
    words = [f"{time.time():.3f}", *vm.told()]
    talk.tell(json.dumps({"seed": secrets.token_hex(32), "words": words}))
