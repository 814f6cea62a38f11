# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu host prepare``: writes configuration files to bind cards to vfio-pci at boot."""

from __future__ import annotations

import pathlib
import sys
import textwrap
from collections.abc import Iterable
from typing import Any

from nova_gpu.cmd import this_host
from nova_gpu.core.model import GPU
from nova_gpu.host.vfio import boot_configuration, passthrough
from nova_gpu.virt.delivery import guest_address_space
from nova_gpu.virt.inventory.discovery import Discovery


def run(command: Any, _: list[str]) -> int:
    root = pathlib.Path(command.root)
    if command.undo:
        return undo(root)
    return main(this_host.discover(), root, apply=command.apply)


def main(discovery: Discovery, root: pathlib.Path, *, apply: bool) -> int:
    """Print the configuration files, and write them below *root* if *apply*.

    vfio-pci keeps the ids that other files give it. Write nothing if another file or the kernel's
    command line would replace those of the cards.

    :returns: the exit status: 0, or 1 if there is no card to bind or nothing was written for that
    """
    if discovery.delivery.shares_driver:
        print(
            "nova-gpu: [libvirt]virt_type = lxc: guests of this host use its cards through their "
            "own drivers, so there is nothing to prepare.",
            file=sys.stderr,
        )
        return 1
    gpus = list(_fit(discovery))
    ids, shared = boot_configuration.own_ids(gpus, discovery.roots) if gpus else ([], {})
    for function, other in sorted(shared.items()):
        print(
            f"nova-gpu: {function} is bound when a guest gets it: {other}, which stays with the "
            "host, has the same ids",
            file=sys.stderr,
        )
    functions = (function for gpu in gpus for function in gpu.functions)
    for function, driver in boot_configuration.taken_before(
        functions, root, discovery.roots
    ).items():
        print(
            f"nova-gpu: {function} is bound when a guest gets it: its driver {driver} is built "
            "into the kernel and takes it before vfio-pci is loaded",
            file=sys.stderr,
        )
    if not ids:
        print("nova-gpu: this host has no card to prepare.", file=sys.stderr)
        return 1
    others = boot_configuration.other_ids(root, discovery.roots)
    union = sorted({*ids, *(name for line in others for name in line.ids)})
    overridden = [line for line in others if line.wins and not set(ids) <= set(line.ids)]
    for line in overridden:
        print(
            f"nova-gpu: {line.source} gives vfio-pci the ids {','.join(line.ids)}, and the "
            "kernel takes these in place of those of the cards: write there vfio-pci's "
            f"ids={','.join(union)}, or remove them if nothing needs them, and run this again.",
            file=sys.stderr,
        )
    if overridden:
        return 1
    extras = [name for name in union if name not in ids]
    arguments = boot_configuration.kernel_arguments(union, root, discovery.roots)
    texts = boot_configuration.texts(union, arguments, root, extras)
    changed = (boot_configuration.write if apply else boot_configuration.changes)(texts, root)
    for name, text in texts.items():
        if text is None and name not in changed:
            continue
        verb = "written" if text is not None else "removed"
        state = (verb if apply else f"to be {verb}") if name in changed else "as it should be"
        print(f"/{name} ({state}){':' if text else ''}")
        print(textwrap.indent(text or "", "    "), end="")
    if not apply:
        print("Nothing was written; --apply does it.")
    print(f"Kernel arguments: {' '.join(arguments) or 'none'}")
    print(
        "Then: rebuild the initramfs (update-initramfs -u -k all; dracut --regenerate-all "
        f"--force); {_boot_loader(texts)}; boot the host."
    )
    return 0


def _fit(discovery: Discovery) -> Iterable[GPU]:
    """Yield the cards that can be bound to vfio-pci at boot for guests.

    Print on standard error why the others are left out.
    """
    room = guest_address_space.of_host(discovery.roots)
    for gpu in discovery.find():
        reasons = list(passthrough.lasting_obstacles(gpu, discovery.roots, room))
        if withheld := discovery.kept(gpu):
            reasons.append(withheld)
        if not reasons:
            yield gpu
        for reason in reasons:
            print(f"nova-gpu: {gpu.address} is left out: {reason}", file=sys.stderr)


def _boot_loader(texts: dict[str, str | None]) -> str:
    if texts[boot_configuration.GRUB] is not None:
        return "update-grub"
    return "give the kernel those arguments, if any (grubby --update-kernel=ALL --args=...)"


def undo(root: pathlib.Path) -> int:
    """Remove the files that :func:`main` wrote below *root*; return 0."""
    changed = boot_configuration.undo(root)
    for name in changed:
        print(f"/{name} (removed)")
    if changed:
        print("Then rebuild the initramfs and the boot loader's configuration.")
    else:
        print("There is nothing to undo.")
    return 0
