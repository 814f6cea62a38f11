# SPDX-License-Identifier: Apache-2.0
"""Device nodes of GPUs: those of one card, those that all cards share, and their creation.

A node is a path ``/dev/...`` as in the guest, and is read below the host's ``roots.dev``.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence

from oslo_log import log as logging

from nova_gpu.core import model, vendors
from nova_gpu.core.device import Device
from nova_gpu.core.vgpu.vgpu import Slot, of_slot, slot_number
from nova_gpu.host import child_process
from nova_gpu.host import roots as host_roots
from nova_gpu.host.mig import gpu_instances
from nova_gpu.host.pci import kfd, sysfs

LOG = logging.getLogger(__name__)

_NVIDIA, _AMDGPU = "nvidia", "amdgpu"
_VENDORS = vendors.VENDORS.values()
_DRM_DRIVERS = frozenset(driver for vendor in _VENDORS for driver in vendor.drm_drivers)
_DRM_NAME = re.compile(r"card\d+|renderD\d+")

_CAPS = "/dev/nvidia-caps/"
# A process that has this node open can open any card of the host by its id from within the kernel,
# which checks neither the mode of that card's node nor the device cgroup (nvkms_open_gpu in
# src/nvidia-modeset/src/nvkms.c and kernel-open/nvidia-modeset/nvidia-modeset-linux.c of NVIDIA's
# open-gpu-kernel-modules).
MODESET = "/dev/nvidia-modeset"
_SHARED_BY_DRIVER = {
    driver: nodes for vendor in _VENDORS for driver, nodes in vendor.shared_nodes.items()
}
_OPTIONAL = frozenset(node for vendor in _VENDORS for node in vendor.optional_nodes)

_MODPROBE = "nvidia-modprobe"
# The minor of /dev/nvidiactl (NV_CTL_DEVICE_NUM in nvidia-modprobe's nvidia-modprobe-utils.h).
_CONTROL_MINOR = 255


def own_nodes(gpu: model.GPU, roots: host_roots.Roots) -> tuple[str, ...]:
    """Return the nodes that belong to this card alone, whether or not they exist now.

    They include the capability nodes of the card's MIG instances, but not those with which a
    process configures or monitors MIG. Return ``()`` if they are unknown: the card is not bound to
    its vendor's driver, or has no minor number.
    """
    return _own_nodes(gpu.address, gpu.driver, roots)


def card_nodes(gpu: model.GPU, roots: host_roots.Roots) -> tuple[str, ...]:
    """Return :func:`own_nodes`, and the DRM nodes in /dev/dri of an NVIDIA card.

    nvidia-drm creates these DRM nodes if it is loaded. A guest can compute without them, so it gets
    them only if a CDI specification names them.
    """
    return tuple(dict.fromkeys((*own_nodes(gpu, roots), *_drm_nodes(gpu.address, roots))))


def shared_nodes(driver: str | None) -> tuple[str, ...]:
    """Return the nodes that all guests with cards of *driver* get, such as /dev/nvidiactl."""
    return _SHARED_BY_DRIVER.get(driver or "", ())


def instance_nodes(slot: Slot, roots: host_roots.Roots) -> tuple[str, ...]:
    """Return the nodes that a guest needs to use the MIG instance at *slot*, if it exists.

    They are the card's node, which alone gives access to no instance, and the capability nodes of
    the GPU instance and of the compute instance.
    """
    return nodes_by_instance(slot.parent, roots).get(slot.number, ())


def nodes_by_instance(
    address: model.PciAddress, roots: host_roots.Roots
) -> dict[int, tuple[str, ...]]:
    """Return the :func:`instance_nodes` of each MIG instance of the card, by its slot's number.

    A guest that lacks one of these nodes cannot open the instance: NVIDIA's MIG user guide, "Device
    nodes and capabilities".
    """
    card = f"/dev/nvidia{gpu_instances.gpu_minor(address, roots)}"
    return {
        number: (card, *_capabilities(instance))
        for instance in gpu_instances.of_card(address, roots)
        if (number := slot_number(instance.gpu_instance, instance.compute_instance)) is not None
    }


def own_instance_nodes(slot: Slot, roots: host_roots.Roots) -> tuple[str, ...]:
    """Return the nodes that give access to no other MIG instance than the one at *slot*.

    If several compute instances share its GPU instance, the node of the GPU instance is left out.
    """
    there = gpu_instances.of_card(slot.parent, roots)
    gpu_instance, compute_instance = of_slot(slot.number)
    neighbours = [instance for instance in there if instance.gpu_instance == gpu_instance]
    for instance in neighbours:
        if instance.compute_instance == compute_instance:
            return _capabilities(instance)[1 if len(neighbours) > 1 else 0 :]
    return ()


def _capabilities(instance: gpu_instances.MIGDevice) -> tuple[str, ...]:
    return tuple(f"{_CAPS}nvidia-cap{cap}" for cap in instance.minors)


def guest_nodes(device: Device, roots: host_roots.Roots) -> tuple[str, ...]:
    """Return every GPU node that a guest with *device*, a card or a MIG instance, may have.

    There is none if it does not exist, or is not with its vendor's driver.
    """
    if isinstance(device, Slot):
        own = instance_nodes(device, roots)
        return (*own, *shared_nodes(_NVIDIA)) if own else ()
    address = device
    driver = sysfs.link(sysfs.device(address, roots), "driver")
    own = _own_nodes(address, driver, roots)
    if not own:
        return ()
    return (*dict.fromkeys((*own, *_drm_nodes(address, roots))), *shared_nodes(driver))


def candidates(roots: host_roots.Roots) -> Iterator[str]:
    """Yield the path of every entry of /dev, /dev/dri and /dev/nvidia-caps, whatever it is.

    :raises OSError: if /dev cannot be listed
    """
    for folder in ("/dev/", "/dev/dri/", _CAPS):
        try:
            names = sorted(os.listdir(on_host(folder, roots)))
        except FileNotFoundError:
            continue
        yield from (f"{folder}{name}" for name in names)


def is_required(node: str) -> bool:
    """Return whether a guest that lacks *node* cannot use its card at all.

    nvidia-uvm is required: every CUDA program fails without it, and every driver since 331 has it.
    The capability node of a MIG instance is not: a guest that lacks it can use the other instances.
    """
    return node not in _OPTIONAL and not node.startswith(_CAPS)


def on_host(node: str, roots: host_roots.Roots) -> pathlib.Path:
    """Return the path at which the host has *node*, which is below ``roots.dev``."""
    return roots.dev / node.removeprefix("/dev/")


def is_there(node: str, roots: host_roots.Roots) -> bool:
    return os.path.lexists(on_host(node, roots))


def number(node: str, roots: host_roots.Roots) -> int | None:
    """Return the device number (``st_rdev``) of *node*; links are followed.

    Return ``None`` if it is no character device, and for a path outside /dev, where a stat may hang
    in a file system that does not answer.
    """
    if not node.startswith("/dev/"):
        return None
    try:
        status = on_host(node, roots).stat()
    except (OSError, ValueError):
        return None
    return status.st_rdev if stat.S_ISCHR(status.st_mode) else None


def open_mode(node: str, mode: int) -> int:
    """Return the file mode *mode* with the "others" permissions that a guest needs to open *node*.

    In a guest with user namespaces the node's owner and group do not exist, so only these
    permissions apply. A capability node is opened for reading only.
    """
    return mode | (stat.S_IROTH if node.startswith(_CAPS) else stat.S_IROTH | stat.S_IWOTH)


def make_nodes(gpus: Iterable[model.GPU], roots: host_roots.Roots, timeout_s: float = 60.0) -> None:
    """Run nvidia-modprobe to create the missing nodes of *gpus* with NVIDIA's driver.

    After a boot of the host none exists until a program creates it. nvidia-modprobe is setuid root,
    so nova-compute needs no privilege. A failure is logged with the card's address, never raised,
    because guests of other cards must still start.
    """
    cards = [gpu for gpu in gpus if gpu.driver == _NVIDIA]
    if not any(_absent(gpu, roots) for gpu in cards):
        return
    tool = shutil.which(_MODPROBE)
    if tool is None:
        failures = [f"{_MODPROBE} is not on the PATH"]
    else:
        failures = [
            failure
            for arguments in _modprobe_arguments(cards, roots)
            if (failure := _run((tool, *arguments), timeout_s)) is not None
        ]
    for gpu in cards:
        if absent := [node for node in _absent(gpu, roots) if node not in _OPTIONAL]:
            LOG.error(
                "GPU %(address)s has no device node %(nodes)s, which guests need: %(reason)s; "
                "install %(tool)s and run it, or nvidia-smi, as root",
                {
                    "address": gpu.address,
                    "nodes": ", ".join(absent),
                    "reason": "; ".join(failures) or f"{_MODPROBE} succeeded, but made no node",
                    "tool": _MODPROBE,
                },
            )


def _own_nodes(
    address: model.PciAddress, driver: str | None, roots: host_roots.Roots
) -> tuple[str, ...]:
    if driver == _NVIDIA:
        minor = gpu_instances.gpu_minor(address, roots)
        if minor is None:
            return ()
        caps = gpu_instances.capabilities(minor, roots)
        return (f"/dev/nvidia{minor}", *(f"{_CAPS}nvidia-cap{cap.minor}" for cap in caps))
    if driver not in _DRM_DRIVERS:
        return ()
    parts = kfd.drm_names(address, roots) if driver == _AMDGPU else ()
    return (*_drm_nodes(address, roots), *_named(parts))


def _absent(gpu: model.GPU, roots: host_roots.Roots) -> list[str]:
    expected = (*own_nodes(gpu, roots), *shared_nodes(gpu.driver))
    return [node for node in expected if not is_there(node, roots)]


def _modprobe_arguments(
    gpus: Sequence[model.GPU], roots: host_roots.Roots
) -> Iterator[tuple[str, ...]]:
    """Yield the arguments of the two calls of nvidia-modprobe that create all nodes of *gpus*.

    With ``-u`` the tool reads ``-c`` as a minor of nvidia-uvm, so one call is not enough.
    """
    arguments = ["-c", str(_CONTROL_MINOR)]
    for gpu in gpus:
        minor = gpu_instances.gpu_minor(gpu.address, roots)
        if minor is not None:
            arguments += ["-c", str(minor)]
            for capability in gpu_instances.capabilities(minor, roots):
                arguments += ["-f", str(capability.access)]
    yield tuple(arguments)
    yield ("-u", "-c", "0")


def _run(command: tuple[str, ...], timeout_s: float) -> str | None:
    """Run *command*; return why it failed."""
    try:
        child_process.run(command, timeout_s)
    except child_process.Failed as error:
        return f"{' '.join(command)} {error}"
    return None


def _drm_nodes(address: model.PciAddress, roots: host_roots.Roots) -> tuple[str, ...]:
    return _named(sorted(sysfs.names(f"{sysfs.device(address, roots)}/drm")))


def _named(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"/dev/dri/{name}" for name in names if _DRM_NAME.fullmatch(name))
