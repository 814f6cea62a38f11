# SPDX-License-Identifier: Apache-2.0
"""What a host has to boot with so that its cards are with vfio-pci from the start."""

from __future__ import annotations

import collections
import fnmatch
import os
import pathlib
from collections.abc import Iterable

from nova_gpu.core import boot_files, exception, model
from nova_gpu.host import processor
from nova_gpu.host.pci import sysfs
from nova_gpu.host.roots import Roots

_MODULE = "vfio-pci.ko"


def functions(
    gpus: Iterable[model.GPU], root: pathlib.Path, roots: Roots
) -> tuple[boot_files.Function, ...]:
    """Every function of *gpus*, whoever drives it now.

    :param root: where /lib/modules is
    :raises DiscoveryFailed: where the host's other functions, which may have the same ids, cannot
        be listed
    :raises OSError, ValueError: where a function cannot be read
    """
    mine = {address for gpu in gpus for address in gpu.functions}
    by_ids = collections.defaultdict(set)
    folder = roots.sysfs / "bus/pci/devices"
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise exception.DiscoveryFailed(str(folder), error.strerror or str(error)) from error
    for name in names:
        by_ids[sysfs.ids(sysfs.device(name, roots))].add(name)
    aliases = _pci_aliases(root)
    found = []
    for address in sorted(mine):
        device = sysfs.device(address, roots)
        ids = sysfs.ids(device)
        found.append(
            boot_files.Function(
                address,
                *ids,
                sysfs.hexadecimal(device, "class"),
                _modules(device, aliases),
                shared=tuple(sorted(by_ids[ids] - set(map(str, mine)))),
            )
        )
    return tuple(found)


def _modules(device: str, aliases: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The modules that udev would load for a function"""
    modalias = sysfs.attribute(device, "modalias")
    found = {module for pattern, module in aliases if fnmatch.fnmatchcase(modalias, pattern)}
    return tuple(sorted(found))


def _pci_aliases(root: pathlib.Path) -> list[tuple[str, str]]:
    """What depmod wrote of drivers of PCI functions, as (pattern, module)"""
    try:
        lines = (_modules_folder(root) / "modules.alias").read_text().splitlines()
    except OSError:
        return []
    words = (line.split() for line in lines if line.startswith("alias pci:"))
    return [(each[1], each[2]) for each in words if len(each) == 3]


def _modules_folder(root: pathlib.Path) -> pathlib.Path:
    return root / "lib/modules" / os.uname().release


def host(root: pathlib.Path, roots: Roots) -> boot_files.Host:
    """What *root*, as a rule ``/``, has of the tools that make a host's boot files."""
    return boot_files.Host(
        cpu_vendor=processor.of_host(roots).vendor,
        built_in=module_kind(root) == "builtin",
        initramfs_tools=(root / "etc/initramfs-tools/hooks").is_dir(),
        dracut=(root / "etc/dracut.conf.d").is_dir(),
        grub_d=(root / "etc/default/grub.d").is_dir(),
    )


def module_kind(root: pathlib.Path) -> str | None:
    """How the running kernel has vfio-pci: ``builtin``, as a module (``dep``), or not at all."""
    folder = _modules_folder(root)
    for kind in ("builtin", "dep"):
        try:
            lines = (folder / f"modules.{kind}").read_text().splitlines()
        except OSError:
            continue
        # "kernel/drivers/vfio/pci/vfio-pci.ko.xz: kernel/..."
        paths = (line.partition(":")[0] for line in lines)
        if any(path.rpartition("/")[2].startswith(_MODULE) for path in paths):
            return kind
    return None
