# SPDX-License-Identifier: Apache-2.0
"""A VM that was saved after it had booted and imported Nova, and is resumed from there.

Booting and importing Nova takes the emulated processor 40 seconds. The saved state has nothing of
this repository that its tests are about: its folders are mounted when the VM is resumed.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import shlex
import shutil
import subprocess
import time

from lab.cloud import steps
from lab.vm import boot, build_cache, debian, monitor, vm

_PREPARED = "labvm: prepared"
_LIMIT_S = 900.0
_POLL_S = 0.2


def build(state: pathlib.Path, made: vm.VM, module: str) -> vm.VM:
    """Return *made* as a VM that resumes after the import of *module*.

    *module* must import no other module of this repository.
    """
    file = made.tree.joinpath(*module.split(".")).with_suffix(".py")
    inside = sorted(path for path in build_cache.INSIDE.rglob("*") if path.is_file())
    prepared = dataclasses.replace(made, prepared=module)
    key = build_cache.digest(_arguments(prepared), _clock(), pathlib.Path(__file__), *inside, file)

    def make(folder: pathlib.Path) -> None:
        with steps.step(f"VM of {debian.codename()} that has imported Nova"):
            _save(prepared, folder)

    # One of a pair has a device more, and one with two processors a further one.
    variant = "joined" if made.line else "saved" if made.processors == 1 else "numa"
    kind = f"{debian.codename()}{'-confined' * made.confined}-{variant}"
    folder = build_cache.made(state, kind, key, make)
    build_cache.prune(state, {folder})
    return dataclasses.replace(made, saved=folder)


def _arguments(made: vm.VM) -> list[str]:
    """Return QEMU's arguments without paths and ports, which may differ the next time."""
    named = dataclasses.replace(
        made,
        emulator=pathlib.Path(made.emulator.parent.name),
        system=pathlib.Path(made.system.name),
        environment=pathlib.Path(made.environment.name),
        tree=pathlib.Path("tree"),
        line=vm.Line(1, 0, 0) if made.line else None,
    )
    words = named.arguments(pathlib.Path("out"), pathlib.Path("console"))
    return [word.replace(str(build_cache.INSIDE), "inside") for word in words]


def _save(made: vm.VM, folder: pathlib.Path) -> None:
    out = folder / "out"
    out.mkdir()
    console = out / "console"
    console.touch()
    talk = monitor.Monitor()
    argv = [*boot.TIED, *made.arguments(out, console), *talk.arguments, "-S"]
    with (out / "qemu.log").open("wb") as log:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=boot.variables(),
            pass_fds=talk.fds,
        )
    try:
        talk.begin()
        overlay = str(folder / vm.OVERLAY)
        arguments = {"device": "system", "snapshot-file": overlay, "format": "qcow2"}
        talk.ask("blockdev-snapshot-sync", **arguments)
        talk.ask("cont")
        ends = time.monotonic() + _LIMIT_S
        while _PREPARED not in console.read_text(errors="replace"):
            if child.poll() is not None or time.monotonic() > ends:
                raise monitor.Refused(f"it does not come up: {_end_of(console)}")
            time.sleep(_POLL_S)
        talk.ask("stop")
        talk.ask("migrate-set-parameters", **{"max-bandwidth": 0})
        talk.ask("migrate", uri=f"exec:cat >{shlex.quote(str(folder / vm.STATE))}")
        talk.wait("query-migrate", "completed", _LIMIT_S)
        talk.ask("quit")
        child.wait(_LIMIT_S)
    except (monitor.Refused, subprocess.TimeoutExpired) as error:
        end = _end_of(out / "qemu.log")
        text = f"the VM cannot be saved: {error}; QEMU's log ends with: {end}"
        raise steps.Failed(text) from error
    finally:
        child.kill()
        child.wait()
        talk.close()
    shutil.rmtree(out)


def _clock() -> str:
    """Return the frequency of this machine's cycle counter, which an emulated machine has too.

    The VM's kernel measures it when it boots.
    """
    match = re.search(r"^bogomips\s*:\s*(\S+)", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return match[1] if match else ""


def _end_of(file: pathlib.Path) -> str:
    return file.read_text(errors="replace")[-500:]
