# SPDX-License-Identifier: Apache-2.0
"""The compute host of a lab with KVM: nova-compute, libvirt and cards in a VM (:mod:`lab.vm`).

A folder of the lab is /out there: it has the configuration, the logs, and a folder for each command
that runs in the VM.
"""

from __future__ import annotations

import pathlib
import shlex
import shutil
import sys
import time
import uuid
from collections.abc import Sequence

from lab import packages
from lab.cloud import process, settings, steps
from lab.vm import boot, system, vm

MEMORY_MIB = 4096
# Emulated, the VM's kernel takes a minute to boot, on a busy machine several.
_BOOT_S = 900.0
_COMMAND_S = 600.0
_POLL_S = 0.2
_NOVA_COMPUTE = "/run/nova-compute.pid"


def power_on(host: settings.Host) -> None:
    """Build what the VM needs, and boot it."""
    lab, out = host.lab, _out(host)
    if reason := vm.obstacle(lab.venv):
        raise steps.Failed(f"--kvm: {reason}")
    try:
        built = vm.build(
            _built(lab), settings.ROOT, lab.venv, name=host.name, memory_mib=MEMORY_MIB
        )
    except packages.MachineNotReady as error:
        raise steps.Failed(str(error)) from error
    shutil.rmtree(out, ignore_errors=True)
    (out / "commands").mkdir(parents=True)
    boot.write_command(out, ["sh", "/run/lab/serve.sh"], {"PYTHONPATH": ""})
    with steps.step(f"{host.name}: a VM with KVM and cards", out / "console"):
        argv = built.arguments(out, out / "console")
        process.start(lab, host.name, argv, boot.variables())

        def is_up() -> bool:
            process.check(lab, host.name)
            return (out / "up").exists()

        steps.wait_for(f"the VM {host.name} to boot", is_up, _BOOT_S, 1)


def power_off(host: settings.Host) -> None:
    """Cut the VM's power; its disk and its guests are gone."""
    process.kill(host.lab, host.name)


def is_on(host: settings.Host) -> bool:
    return process.pid(host.lab, host.name) is not None


def run(host: settings.Host, command: Sequence[str]) -> int:
    """Run *command* on the host, print its output, and return its exit status."""
    if not is_on(host):
        raise steps.Failed(f"{host.name} is off: run `tools/lab down` and `tools/lab up --kvm`")
    folder = _begin(host, shlex.join(command))
    deadline, shown = time.monotonic() + _COMMAND_S, 0
    while True:
        has_ended = (folder / "status").exists()
        shown = _show(folder / "output", shown)
        if has_ended:
            return _end(folder)
        if time.monotonic() > deadline:
            raise steps.Failed(f"`{shlex.join(command)}` did not end in {_COMMAND_S:.0f} s")
        process.check(host.lab, host.name)
        time.sleep(_POLL_S)


def output(host: settings.Host, script: str) -> tuple[int, str]:
    """Run *script* on the host; return its exit status and its output."""
    folder = _begin(host, script)

    def has_ended() -> bool:
        process.check(host.lab, host.name)
        return (folder / "status").exists()

    steps.wait_for(f"{host.name} to run a command", has_ended, _COMMAND_S)
    text = (folder / "output").read_text(errors="replace")
    return _end(folder), text


def start(host: settings.Host) -> None:
    """Start nova-compute, unless it runs, with the lab's configuration; do not wait for it."""
    log = process.log_file(host.lab, host.service)
    log.parent.mkdir(parents=True, exist_ok=True)
    here = _out(host) / "nova-compute.log"
    here.touch()
    log.unlink(missing_ok=True)
    log.symlink_to(here)
    shutil.copytree(host.etc, _out(host) / "etc", dirs_exist_ok=True)
    argv = "/opt/nova/bin/nova-compute --config-file /etc/nova/nova.conf"
    script = [
        f"read -r pid <{_NOVA_COMPUTE} 2>/dev/null && [ -d /proc/$pid ] && exit 0",
        # The operator's own changes stay.
        "[ -e /etc/nova/nova.conf ] || cp -r /out/etc/. /etc/nova/",
        f"setsid {argv} >>/out/nova-compute.log 2>&1 </dev/null & echo $! >{_NOVA_COMPUTE}",
    ]
    output(host, "\n".join(script))


def stop(host: settings.Host, patience_s: float) -> None:
    """End nova-compute as ``systemctl stop`` does."""
    script = [
        f"read -r pid <{_NOVA_COMPUTE} || exit 0",
        'kill -TERM "$pid"',
        f'for _ in $(seq {patience_s * 2:.0f}); do [ -d "/proc/$pid" ] || exit 0; sleep 0.5; done',
        'kill -KILL "$pid"',
    ]
    output(host, "\n".join(script))


def guest_files(lab: settings.Lab, folder: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """Extract the guests' kernel and initramfs from the VM's disk to *folder*; return both."""
    disk = system.build(_built(lab)) / system.DISK
    files = []
    for name in (system.GUEST_KERNEL, system.GUEST_INITRAMFS):
        files.append(folder / pathlib.Path(name).name)
        argv = ["debugfs", "-R", f"dump {name} {files[-1]}", str(disk)]
        steps.run(argv, lab.log / "guest.log")
    return files[0], files[1]


def _out(host: settings.Host) -> pathlib.Path:
    return host.folder / "out"


def _built(lab: settings.Lab) -> pathlib.Path:
    return lab.cache / "vm"


def _begin(host: settings.Host, script: str) -> pathlib.Path:
    """Leave a command for the VM, as a whole; return its folder."""
    folder = _out(host) / "commands" / uuid.uuid4().hex
    unfinished = _out(host) / folder.name
    unfinished.mkdir()
    (unfinished / "command").write_text(script + "\n")
    unfinished.rename(folder)
    return folder


def _end(folder: pathlib.Path) -> int:
    """Remove the folder of a command that has ended; return its exit status."""
    status = int((folder / "status").read_text())
    shutil.rmtree(folder)
    return status


def _show(output: pathlib.Path, since: int) -> int:
    """Print what *output* has since a byte; return how many bytes it has."""
    if not output.exists():
        return since
    with output.open("rb") as file:
        file.seek(since)
        text = file.read()
    sys.stdout.write(text.decode(errors="replace"))
    sys.stdout.flush()
    return since + len(text)
