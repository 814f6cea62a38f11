# SPDX-License-Identifier: Apache-2.0
"""The device nodes, mounts and environment of an LXC guest with GPUs.

A guest always gets all device nodes of its cards and MIG instances, even those that a CDI
specification lacks. A specification that describes the card adds further nodes, the driver's files
and environment: only nodes that give access to no other card, and only files that no user but root
could have written. Mounting them read-only prevents accidents alone: root in a guest can mount them
again, as tried with libvirt 9.0.
"""

from __future__ import annotations

import os
import pathlib
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence

from oslo_log import log as logging

from nova_gpu.core import container as values
from nova_gpu.core import exception, model, vendors
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host import nodes
from nova_gpu.host import roots as host_roots
from nova_gpu.host.container import cdi, libraries
from nova_gpu.host.nvidia import proc
from nova_gpu.host.state import files

LOG = logging.getLogger(__name__)

_LIBRARY_PATH = "LD_LIBRARY_PATH"
_LIBCUDA = re.compile(r"libcuda\.so\.([0-9]+(?:\.[0-9]+)+)")
_KERNEL = re.compile(r"/(dev|proc|sys)(/.*)?")
# Folders that every image has. libvirt creates a missing folder, but not the folder of a file.
_SYSTEM_FOLDERS = frozenset(
    {"/", "/bin", "/etc", "/home", "/lib", "/lib32", "/lib64", "/root", "/run", "/sbin", "/tmp"}
    | {"/usr", "/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/sbin", "/usr/share"}
    | {"/var", "/var/lib", "/var/run"}
)
_SYSTEM_FILES = frozenset(
    {"/etc/passwd", "/etc/shadow", "/etc/group", "/etc/gshadow", "/etc/sudoers"}
    | {"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.preload"}
)
# A folder with such a name is the driver's own, so a mount over it hides nothing of the image.
_FOLDERS = "|".join(word for vendor in vendors.VENDORS.values() for word in vendor.folders)
_VENDORS_FOLDER = re.compile(rf"((?:/[^/]+)*?/[^/]*(?:{_FOLDERS})[^/]*)(?:/.*)?")


def contents(
    gpus: Sequence[model.GPU],
    roots: host_roots.Roots,
    library_root: pathlib.Path,
    owner_uid: int = 0,
    slots: Sequence[Slot] = (),
    more: Collection[str] = (),
) -> values.GuestContents:
    """Return nodes, mounts and environment of a guest with *gpus* and the MIG instances at *slots*.

    :param library_root: where folders for the driver's files are created
    :param owner_uid: the user who must own the CDI specifications and the files they name: root
    :param more: nodes that the specifications may add in addition to those of the guest's cards
    :raises DeviceNodeMissing: if a card or MIG instance has no nodes, or one of them does not exist
    :raises DeviceUnavailable: if a file that the card's CDI specification names does not exist
    :raises GuestFilesUnavailable: if the driver's files cannot be gathered below *library_root*
    """
    nodes_given = set(_own_nodes(gpus, slots, roots))
    allowed = nodes_given.union(more, *(nodes.card_nodes(gpu, roots) for gpu in gpus))
    wanted: dict[str, values.Mount] = {}
    env: dict[str, str] = {}
    links: dict[tuple[str, str], None] = {}
    for address, device in _described(gpus, slots, allowed, roots, owner_uid):
        nodes_given |= {
            node.path for node in _nodes(device, allowed) if nodes.is_there(node.path, roots)
        }
        wanted |= {mount.target: mount for mount in _mounts(address, device, owner_uid)}
        env |= dict(device.edits.env)
        links |= dict.fromkeys(device.edits.links)
    placed = _placed(wanted.values(), links, library_root)
    if any(mount.target == libraries.TARGET for mount in placed):
        env[_LIBRARY_PATH] = ":".join(filter(None, (env.get(_LIBRARY_PATH), libraries.TARGET)))
    return values.GuestContents(
        nodes=tuple(sorted(nodes_given)),
        mounts=tuple(sorted(placed, key=lambda mount: mount.target)),
        env=tuple(sorted(env.items())),
    )


def obstacle(
    device: model.GPU | Slot, roots: host_roots.Roots, driver: str | None, owner_uid: int = 0
) -> str | None:
    """Return why no guest can start with the driver's files for *device*, which CDI files name.

    Return ``None`` if they are there, or no CDI file describes the card or MIG instance.
    """
    read = cdi.find(roots.cdi_spec_dirs, owner_uid)
    address, own, described = _match(device, read, roots)
    try:
        if described is None:
            _refuse_ignored(address, own, read)
            return None
        for mount in described.edits.mounts:
            _status(address, described, mount)
    except exception.DeviceUnavailable as error:
        others = f" ({error.others})" if error.others else ""
        return f"{error.reason}{others}; {error.remedy}"
    return _of_another_driver(described, roots) if driver == "nvidia" else None


def _of_another_driver(device: cdi.CdiDevice, roots: host_roots.Roots) -> str | None:
    """Return that the libraries are of another version than the driver, which refuses them.

    NVML has error 18 for that (nvml.h: NVML_ERROR_LIB_RM_VERSION_MISMATCH).
    """
    loaded = proc.version(roots)
    sources = (os.path.basename(os.path.realpath(it.source)) for it in device.edits.mounts)
    named = {match[1] for source in sources if (match := _LIBCUDA.fullmatch(source))}
    if loaded is None or not named or loaded in named:
        return None
    return (
        f"its CDI file {device.file} names libraries of the driver {', '.join(sorted(named))}, and "
        f"the kernel has loaded {loaded}; boot the host or load the new driver, and have the "
        "vendor's tool write that file again"
    )


def _own_nodes(
    gpus: Iterable[model.GPU], slots: Iterable[Slot], roots: host_roots.Roots
) -> Iterator[str]:
    """Yield the nodes of *gpus* and *slots* that exist; refuse a device without one it needs."""
    for gpu in gpus:
        own = nodes.own_nodes(gpu, roots)
        remedy = f"it must be bound to its vendor's driver (now: {gpu.driver or 'none'})"
        wanted = (*own, *nodes.shared_nodes(gpu.driver))
        yield from _there(str(gpu.address), own, remedy, wanted, (), roots)
    for slot in slots:
        own = nodes.instance_nodes(slot, roots)
        remedy = "create the MIG instance again as it was (nvidia-smi mig)"
        yield from _there(str(slot), own, remedy, nodes.guest_nodes(slot, roots), own, roots)


def _there(
    device: str,
    own: Collection[str],
    remedy: str,
    wanted: Iterable[str],
    required: Collection[str],
    roots: host_roots.Roots,
) -> Iterator[str]:
    if not own:
        raise exception.DeviceNodeMissing(device, "of its own", remedy)
    for node in wanted:
        if nodes.is_there(node, roots):
            yield node
        elif node in required or nodes.is_required(node):
            raise exception.DeviceNodeMissing(
                device,
                node,
                "restart nova-compute, which lets nvidia-modprobe create it, or create it with the "
                "vendor's tool (nvidia-modprobe, nvidia-smi)",
            )


def _described(
    gpus: Sequence[model.GPU],
    slots: Sequence[Slot],
    allowed: Collection[str],
    roots: host_roots.Roots,
    owner_uid: int,
) -> Iterator[tuple[model.PciAddress, cdi.CdiDevice]]:
    """Yield the cards of *gpus* and *slots* that have a CDI device, each with that device."""
    if not gpus and not slots:
        return
    read = cdi.find(roots.cdi_spec_dirs, owner_uid)
    grants: list[model.GPU | Slot] = [*gpus, *slots]
    for address, own, device in [_match(grant, read, roots) for grant in grants]:
        if device is None:
            _refuse_ignored(address, own, read)
            continue
        unfit = [node for node in _nodes(device, allowed) if not _is_expressible(node, roots)]
        if not unfit:
            yield address, device
            continue
        LOG.warning(
            "CDI device %(name)s of %(file)s is not used for GPU %(address)s, so its guests get "
            "only device nodes and not the driver's files: libvirt cannot give the host's "
            "%(host_path)s at %(path)s, only a character device below /dev with the same path or "
            "number. Correct that node in the file, or have the vendor's tool write it again "
            "(nvidia-ctk cdi generate).",
            {
                "name": device.name,
                "file": device.file,
                "address": address,
                "host_path": unfit[0].host_path,
                "path": unfit[0].path,
            },
        )


def _match(
    grant: model.GPU | Slot, read: cdi.Specifications, roots: host_roots.Roots
) -> tuple[model.PciAddress, Sequence[str], cdi.CdiDevice | None]:
    """Return the address of a card, the nodes that tell *grant*, and the CDI device for it."""
    if isinstance(grant, model.GPU):
        own = tuple(filter(nodes.is_required, nodes.own_nodes(grant, roots)))
        return grant.address, own, cdi.describing(own, read.devices)
    own = nodes.instance_nodes(grant, roots)
    card, last = own[:1], own[1:][-1:]
    # The CDI device of the MIG instance; without one, that of its card, whose driver files are the
    # same.
    device = cdi.describing(last, read.devices) or cdi.describing(card, read.devices)
    return grant.parent, (*card, *last), device


def _refuse_ignored(
    address: model.PciAddress, own: Collection[str], read: cdi.Specifications
) -> None:
    """Refuse a device that no CDI device describes, if an ignored file may do.

    :param own: the nodes that tell it
    :raises DeviceUnavailable: with the ignored file
    """
    for line in read.ignored:
        if line.may_describe(own):
            raise exception.DeviceUnavailable(
                str(address),
                "the host's CDI file with the driver's files for it cannot be used",
                "have the vendor's tool write it again (nvidia-ctk cdi generate), or remove it "
                "where images bring the driver's files",
                f"{line.path}: {line.reason}",
            )


def _nodes(device: cdi.CdiDevice, allowed: Collection[str]) -> list[cdi.CdiNode]:
    # Others may give access to every card: /dev/nvidia-modeset in the files that nvidia-ctk writes.
    return [n for n in device.edits.nodes if n.path in allowed or n.host_path in allowed]


def _is_expressible(node: cdi.CdiNode, roots: host_roots.Roots) -> bool:
    """Return whether libvirt can give the specification's node to a guest.

    It can if the node is a character device below /dev with the same path or device number in the
    guest and on the host. The number matters for a driver that runs in a container (NVIDIA's GPU
    Operator): its /run/nvidia/driver/dev/nvidia0 is the host's /dev/nvidia0.
    """
    return (
        node.path.startswith("/dev/")
        and node.type not in ("b", "p")
        and (node.path == node.host_path or _is_one_device(node, roots))
    )


def _is_one_device(node: cdi.CdiNode, roots: host_roots.Roots) -> bool:
    number = nodes.number(node.path, roots)
    if node.host_path.startswith("/dev/"):
        return number is not None and number == nodes.number(node.host_path, roots)
    try:
        other = os.stat(node.host_path)
    except (OSError, ValueError):
        return False
    return stat.S_ISCHR(other.st_mode) and other.st_rdev == number


def _mounts(
    address: model.PciAddress, device: cdi.CdiDevice, owner_uid: int
) -> Iterator[values.Mount]:
    """Yield the mounts of the CDI device that guests may have, their sources without links."""
    for mount in device.edits.mounts:
        status = _status(address, device, mount)
        reason = files.distrust(status, owner_uid) or _refusal(mount, status)
        if reason is None:
            yield values.Mount(os.path.realpath(mount.source), mount.target)
        else:
            LOG.warning(
                "Guests do not get %(source)s at %(target)s, which CDI file %(file)s names: "
                "%(reason)s",
                {
                    "source": mount.source,
                    "target": mount.target,
                    "file": device.file,
                    "reason": reason,
                },
            )


def _status(
    address: model.PciAddress, device: cdi.CdiDevice, mount: values.Mount
) -> os.stat_result:
    try:
        return os.stat(mount.source)
    except OSError as error:
        raise exception.DeviceUnavailable(
            str(address),
            f"its CDI file {device.file} names {mount.source}: {error.strerror}",
            "have the vendor's tool write that file again, as after every driver upgrade",
        ) from error


def _refusal(mount: values.Mount, status: os.stat_result) -> str | None:
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return "it is a socket or device, which is a way to the host and no file of the driver"
    if _KERNEL.fullmatch(mount.target):
        return "the kernel's files are at that path in the guest"
    if mount.target in _SYSTEM_FOLDERS or mount.target in _SYSTEM_FILES:
        return "it would hide files of the guest's operating system"
    if f"{mount.target}/".startswith(f"{libraries.TARGET}/"):
        return f"nova-gpu mounts the libraries at {libraries.TARGET}"
    return None


def _placed(
    mounts: Iterable[values.Mount], links: Iterable[tuple[str, str]], library_root: pathlib.Path
) -> list[values.Mount]:
    """Return mounts to use in place of *mounts*, so that a guest of any image can start.

    libvirt does not start a guest whose image lacks the folder of a mounted file. So libraries are
    gathered in one folder, with *links* (:func:`nova_gpu.host.container.libraries.gather`). Another
    file is mounted alone if every image has its folder. If the folder is the driver's own, a folder
    with all its files is mounted; otherwise the file is left out.
    """
    of_libraries: list[values.Mount] = []
    of_folders: dict[str, list[values.Mount]] = {}
    placed: list[values.Mount] = []
    for mount in mounts:
        folder = os.path.dirname(mount.target)
        if os.path.isdir(mount.source):
            placed.append(mount)
        elif libraries.is_library(mount):
            of_libraries.append(mount)
        elif folder in _SYSTEM_FOLDERS:
            placed.append(mount)
        elif vendors := _VENDORS_FOLDER.fullmatch(folder):
            of_folders.setdefault(vendors[1], []).append(mount)
        else:
            LOG.info(
                "Guests do not get the driver's file %(target)s: mounted alone, it keeps a guest "
                "whose image lacks %(folder)s from starting; a mount over all of %(folder)s could "
                "hide other files",
                {"target": mount.target, "folder": folder},
            )
    if of_libraries:
        placed.append(libraries.gather(of_libraries, links, library_root))
    for folder, own in of_folders.items():
        placed.append(libraries.gather_folder(own, folder, library_root))
    return placed
