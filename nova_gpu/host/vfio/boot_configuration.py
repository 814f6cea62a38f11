# SPDX-License-Identifier: Apache-2.0
"""Boot configuration that binds a host's cards to vfio-pci, which ``nova-gpu host prepare`` writes.

It consists of a modprobe.d file and, if kernel arguments are needed, a drop-in file of GRUB. What
cannot be read or written raises OSError, and nothing is changed if :func:`changes` refuses.

"""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from nova_gpu.core import exception, model, vendors
from nova_gpu.host import processor
from nova_gpu.host.pci import iommu, sysfs
from nova_gpu.host.roots import Roots
from nova_gpu.host.state import files

MODPROBE = "etc/modprobe.d/nova-gpu.conf"
# modprobe.d(5)
_FOLDERS = (
    *("etc/modprobe.d", "run/modprobe.d", "usr/local/lib/modprobe.d"),
    *("usr/lib/modprobe.d", "lib/modprobe.d"),
)
_ON_COMMAND_LINE = re.compile(r"(?:^|\s)vfio[-_]pci\.ids=(\S+)")
GRUB = "etc/default/grub.d/nova-gpu.cfg"
# On the command line they cannot be told from nova-gpu's own any more, once it has written them.
_KEPT = "# Kept for other devices: vfio-pci.ids="

HEAD = "# Written by nova-gpu host prepare, removed by nova-gpu host prepare --undo.\n"
_VENDORS = vendors.VENDORS.values()
# Modules of drivers that have another name
_MODULES = {"xhci_hcd": "xhci_pci"} | {
    driver: module for vendor in _VENDORS for driver, module in vendor.companions.items()
}
# Drivers of cards and of their companions that may take a function before vfio-pci does. A softdep
# on a module that the host does not have is ignored.
_DRIVERS = (
    *(module for vendor in _VENDORS for module in vendor.modules),
    *("snd_hda_intel", *_MODULES.values()),
)


def own_ids(
    gpus: Iterable[model.GPU], roots: Roots
) -> tuple[list[str], dict[model.PciAddress, str]]:
    """Return the PCI ids (``10de:2335``) by which vfio-pci can take the functions of *gpus*.

    The second value has the functions of *gpus* that it cannot take by id, because the host has
    another function with the same ids. It maps such a function to that other function.

    :raises DiscoveryFailed: if the host's functions cannot be listed
    """
    mine = {str(address) for gpu in gpus for address in gpu.functions}
    folder = roots.sysfs / "bus/pci/devices"
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise exception.DiscoveryFailed(str(folder), error.strerror or str(error)) from error
    by_ids = collections.defaultdict(list)
    for name in sorted(names):
        by_ids[":".join(sysfs.ids(sysfs.device(name, roots)))].append(name)
    ids, shared = [], {}
    for pair, functions in sorted(by_ids.items()):
        others = [name for name in functions if name not in mine]
        if not others:
            ids.append(pair)
        for name in mine.intersection(functions) if others else ():
            shared[model.PciAddress.parse(name)] = others[0]
    return ids, shared


class OtherIds(NamedTuple):
    """PCI ids that a line not of nova-gpu gives to vfio-pci.

    ``source`` names it for the operator. ``wins``: it replaces the ids of nova-gpu's own line.
    """

    source: str
    ids: tuple[str, ...]
    wins: bool


def other_ids(root: pathlib.Path, roots: Roots) -> list[OtherIds]:
    """Return the ids that modprobe's other files and the kernel's command line give to vfio-pci.

    modprobe reads its files in the order of their names, and the kernel takes the last of several
    values of a parameter. The command line comes after all files (kmod, libkmod-config.c). A
    vfio-pci that is built into the kernel reads no file.
    """
    # Of files with one name the one in the first folder counts (modprobe.d(5)).
    paths = {
        path.name: path for folder in reversed(_FOLDERS) for path in (root / folder).glob("*.conf")
    }
    if module_kind(root) == "builtin":
        paths = {}
    own = pathlib.PurePath(MODPROBE).name
    others = [
        OtherIds(f"/{paths[name].relative_to(root)}", tuple(ids), name > own)
        for name in sorted(paths.keys() - {own})
        if (ids := _option(paths[name].read_bytes().decode(errors="replace")))
    ]
    line = written = b""
    with contextlib.suppress(FileNotFoundError):
        line = (roots.proc / "cmdline").read_bytes()
    with contextlib.suppress(FileNotFoundError):
        written = (root / GRUB).read_bytes()
    texts = [text.decode(errors="replace").replace('"', "") for text in (written, line)]
    if extras := _split(texts[0].partition(_KEPT)[2].partition("\n")[0]):
        others.append(OtherIds(f"/{GRUB}", extras, wins=False))
    mine, arguments = ([_split(ids) for ids in _ON_COMMAND_LINE.findall(text)] for text in texts)
    # The host may not have booted since nova-gpu wrote more ids than it booted with.
    names = {name for ids in mine for name in ids}
    if foreign := [ids for ids in arguments if not names.issuperset(ids)]:
        others.append(OtherIds("the kernel's command line", foreign[-1], wins=True))
    return others


def _option(text: str) -> Sequence[str]:
    """Return the ids in the last ``options vfio-pci ids=`` of a modprobe file."""
    ids: Sequence[str] = ()
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split()
        if words[:1] == ["options"] and words[1:2] in (["vfio-pci"], ["vfio_pci"]):
            for word in words[2:]:
                if word.startswith("ids="):
                    ids = _split(word.removeprefix("ids="))
    return ids


def _split(ids: str) -> tuple[str, ...]:
    return tuple(text.strip().lower() for text in ids.strip("\"'").split(",") if text.strip())


def kernel_arguments(ids: Iterable[str], root: pathlib.Path, roots: Roots) -> list[str]:
    """Return the kernel arguments that passthrough needs on this host.

    AMD's IOMMU needs none, because it is on unless the firmware has turned it off.

    :param ids: the PCI ids that vfio-pci takes; needed if it is built into the kernel
    """
    vendor = processor.of_host(roots).vendor
    arguments = ["intel_iommu=on"] if vendor == "GenuineIntel" else []
    if vendor in ("GenuineIntel", "AuthenticAMD", "HygonGenuine"):
        # The host's own devices bypass the tables, those of guests do not.
        arguments.append("iommu=pt")
    if module_kind(root) == "builtin":
        # modprobe.d has no effect on drivers that are built into the kernel.
        arguments.append(f"vfio-pci.ids={','.join(ids)}")
    return arguments


def texts(
    ids: Iterable[str], arguments: Iterable[str], root: pathlib.Path, extras: Sequence[str] = ()
) -> dict[str, str | None]:
    """Return the contents of the modprobe.d file and of the GRUB file, by path below *root*.

    The content of the GRUB file is ``None`` if the host does not need it.

    :param extras: those of *ids* that the host gives to vfio-pci for other devices than cards
    """
    options = f"options vfio-pci ids={','.join(ids)}"
    softdeps = [f"softdep {module} pre: vfio-pci" for module in _DRIVERS]
    line = f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {" ".join(arguments)}"\n'
    if extras and module_kind(root) == "builtin":
        line = f"{_KEPT}{','.join(extras)}\n{line}"
    needs_grub = arguments and (root / GRUB).parent.is_dir()
    return {
        MODPROBE: "\n".join([HEAD + options, *softdeps, ""]),
        GRUB: HEAD + line if needs_grub else None,
    }


def changes(texts: Mapping[str, str | None], root: pathlib.Path) -> list[str]:
    """Return the names of the files below *root* whose contents differ from *texts*.

    :raises FileNotOurs: if a file was not written by nova-gpu
    :raises OSError: if a file cannot be read
    """
    changed = []
    for name, text in texts.items():
        try:
            current = (root / name).read_text(errors="replace")
        except FileNotFoundError:
            current = None
        if current is not None and not current.startswith(HEAD):
            raise exception.FileNotOurs(str(root / name))
        if current != text:
            changed.append(name)
    return changed


def write(texts: Mapping[str, str | None], root: pathlib.Path) -> list[str]:
    """Write *texts* to their files below *root*, and return the names of the changed files.

    A file with the text ``None`` is removed.
    """
    changed = changes(texts, root)
    for name in changed:
        path, text = root / name, texts[name]
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write(path, text.encode(), mode=0o644)
    return changed


def undo(root: pathlib.Path) -> list[str]:
    """Remove the files that :func:`write` wrote below *root*, and return their names."""
    return write({MODPROBE: None, GRUB: None}, root)


def module_kind(root: pathlib.Path, module: str = "vfio_pci") -> str | None:
    """Return ``builtin`` if the running kernel contains *module*, ``dep`` if it is loadable."""
    folder = root / "lib/modules" / os.uname().release
    for kind in ("builtin", "dep"):
        try:
            lines = (folder / f"modules.{kind}").read_text().splitlines()
        except OSError:
            continue
        # "kernel/drivers/vfio/pci/vfio-pci.ko.xz: kernel/..."
        paths = (line.partition(":")[0] for line in lines)
        names = (path.rpartition("/")[2].partition(".ko")[0] for path in paths)
        if any(name.replace("-", "_") == module for name in names):
            return kind
    return None


def taken_before(
    functions: Iterable[model.PciAddress], root: pathlib.Path, roots: Roots
) -> dict[model.PciAddress, str]:
    """Return the drivers that are built into the kernel and have *functions*, by function.

    They take a function before the module vfio-pci is loaded, whatever modprobe.d says.
    """
    if module_kind(root) == "builtin":
        return {}
    drivers = {}
    for function in functions:
        driver = iommu.driver(function, roots)
        if driver and module_kind(root, _MODULES.get(driver, driver)) == "builtin":
            drivers[function] = driver
    return drivers
