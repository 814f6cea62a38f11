# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu host prepare``: binds the host's cards to vfio-pci when it boots."""

from __future__ import annotations

import pathlib
import sys
import textwrap
from collections.abc import Iterable

from nova_gpu.core import boot_files
from nova_gpu.core.model import GPU
from nova_gpu.host.state import written_files
from nova_gpu.host.vfio import boot, passthrough
from nova_gpu.virt.delivery import guest_address_space
from nova_gpu.virt.inventory import discovery


def main(looked: discovery.Discovery, root: pathlib.Path, *, apply: bool) -> int:
    """Shows the files, and writes them below *root* where they are to *apply*.

    :returns: 0, or 1 where nothing can be prepared
    :raises GPUError: where the host cannot be read, or another program or person has changed a file
    :raises OSError: where a file cannot be read or written
    """
    if looked.delivery.shares_driver:
        print(
            "nova-gpu: [libvirt]virt_type = lxc: guests of this host use its cards through their "
            "own drivers, so there is nothing to prepare.",
            file=sys.stderr,
        )
        return 1
    gpus = list(_fit(looked))
    if not gpus:
        print("nova-gpu: this host has no card to prepare.", file=sys.stderr)
        return 1
    host = boot.host(root, looked.roots)
    functions = boot.functions(gpus, root, looked.roots)
    files = boot_files.files(functions, host)
    changed = (written_files.apply if apply else written_files.changes)(files, root)
    print(_described(files, set(changed), apply))
    if not apply:
        print("Nothing was written; --apply does it.")
    print(_afterwards(boot_files.kernel_arguments(functions, host), host))
    return 0


def _fit(looked: discovery.Discovery) -> Iterable[GPU]:
    """The cards that a guest can be given once the host has booted anew; the others are named."""
    room = guest_address_space.of_host(looked.roots)
    for gpu in looked.find():
        reasons = list(passthrough.lasting_obstacles(gpu, looked.roots, room))
        if kept := looked.kept(gpu):
            reasons.append(kept)
        if not reasons:
            yield gpu
        for reason in reasons:
            print(f"nova-gpu: {gpu.address} is left out: {reason}", file=sys.stderr)


def undo(root: pathlib.Path) -> int:
    """Restores below *root* what was there before :func:`main` wrote.

    :raises GPUError, OSError: as :func:`main`
    """
    changed = written_files.undo(root)
    for path in changed:
        print(f"{path}: as it was before")
    if changed:
        print("Then run what made the host's boot files (update-initramfs, dracut, update-grub).")
    else:
        print("There is nothing to undo.")
    return 0


def _described(files: Iterable[boot_files.File], changed: set[str], apply: bool) -> str:
    """Each file with its text, and whether it is, was or would be written"""
    blocks = []
    for file in files:
        state = "as it should be"
        if file.path in changed:
            state = "written" if apply else "to be written"
        blocks.append(
            f"{file.path} ({state}):\n" + textwrap.indent(file.text, "    ", lambda line: True)
        )
    stale = sorted(changed - {file.path for file in files})
    state = "taken back" if apply else "to be taken back"
    return "\n".join([*blocks, *(f"{path} ({state})" for path in stale)])


def _afterwards(arguments: Iterable[str], host: boot_files.Host) -> str:
    """What the operator still has to do"""
    steps = []
    if host.initramfs_tools:
        steps.append("update-initramfs -u -k all")
    if host.dracut:
        steps.append("dracut --regenerate-all --force")
    if host.grub_d:
        steps.append("update-grub")
    elif arguments:
        steps.append("give the kernel those arguments (grubby --update-kernel=ALL --args=...)")
    line = "Kernel arguments: " + (" ".join(arguments) or "none")
    return f"{line}\nThen: {'; '.join([*steps, 'boot the host'])}."
