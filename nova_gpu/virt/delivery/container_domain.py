# SPDX-License-Identifier: Apache-2.0
"""The domain of a container with GPUs: the mount of its root filesystem, its files, and its end.

Nova unmounts the root filesystem on the host once the guest has started, because the guest has a
mount of its own. But when a guest reboots itself, libvirt starts it again from the same folder, and
so does Nova after a soft reboot. The folder is empty then, libvirt finds no init in it, and the
guest stays down. So on a host with GPUs the filesystem stays mounted until the guest is destroyed.
On a host without GPUs Nova's behaviour is unchanged.

Processes that use a GPU's driver may end slowly. libvirt waits 3 s for the processes of a guest
(virLXCProcessStop, virCgroupKillPainfully), and 6 s more when the guest's controller is gone. If a
process needs longer, libvirt's LXC driver (seen with 9.0) reports the domain as running for good,
although it has no process, and Nova waits forever for the guest's end: a delete never returns, and
keeps the instance's lock.
"""

from __future__ import annotations

import contextlib
import logging as python_logging
import os
import pathlib
import time
from collections.abc import Iterator

import libvirt
import nova.privsep.fs
from nova import exception as nova_exception
from nova import objects
from nova.compute import power_state
from nova.virt.libvirt import config as vconfig
from nova.virt.libvirt import driver
from nova.virt.libvirt import host as libvirt_host
from nova.virt.libvirt import utils as libvirt_utils
from oslo_concurrency import processutils
from oslo_log import log as logging

import nova_gpu.privsep.root_disk
from nova_gpu.core.printable import printable
from nova_gpu.host import processes as host_processes
from nova_gpu.host.container import end_processes
from nova_gpu.virt import signatures

LOG = logging.getLogger(__name__)

# The key of system_metadata under which Nova records the block device (loop or nbd) of a
# container's disk.
_DEVICE = "rootfs_device_name"
# The machine's own /sys, even if [gpu]sysfs_root is set: a generated tree has no loop devices.
_SYSFS = pathlib.Path("/sys")
_PATIENCE_S = 120.0
_PAUSE_S = 0.5
# libvirt, src/lxc/lxc_process.c: an internal error that has no number of its own
_REFUSAL = "Some processes refused to die"
_PROC = pathlib.Path("/proc")
# The first release whose nova.privsep.idmapshift.shift works
_REPAIRED = 34


def is_in_use(libvirt_driver: driver.LibvirtDriver, instance: objects.Instance) -> bool:
    """Return whether the container runs; false if it has no domain, as after a failed start."""
    try:
        state: int = libvirt_driver.get_info(instance).state
    except nova_exception.InstanceNotFound:
        return False
    return state == int(power_state.RUNNING)


def forget_stale_device(instance: objects.Instance, sysfs: pathlib.Path = _SYSFS) -> None:
    """Forget the loop device that Nova recorded for the instance's disk, if it is another's by now.

    Whenever Nova destroys a guest it detaches the recorded device, even if the guest was stopped
    before or its start failed. The device may belong to another guest by then, which would lose its
    disk while it starts. Forget it also if the root filesystem is still mounted: Nova then finds
    the device by the mount, and would detach it twice.
    """
    device = instance.system_metadata.get(_DEVICE)
    root = os.path.join(libvirt_utils.get_instance_path(instance), "rootfs")
    if device and (os.path.ismount(root) or not _is_its(device, instance, sysfs)):
        del instance.system_metadata[_DEVICE]


def detach_left_devices(instance: objects.Instance, sysfs: pathlib.Path = _SYSFS) -> None:
    """Detach every loop device whose backing file belongs to the instance.

    Nova detaches only the device that it recorded, and nova-compute may have died between making a
    device and recording it. Call it when the guest and the mount of its root filesystem are gone.
    """
    for file in (sysfs / "block").glob("loop*/loop/backing_file"):
        device = f"/dev/{file.parts[-3]}"
        if not _is_its(device, instance, sysfs):
            continue
        try:
            nova.privsep.fs.loopremove(device)
        except processutils.ProcessExecutionError as error:
            LOG.warning(
                "Failed to detach loop device %s: %s", device, error.stderr, instance=instance
            )
        else:
            LOG.info(
                "Detached loop device %s, which an earlier start had left",
                device,
                instance=instance,
            )


def _is_its(device: str, instance: objects.Instance, sysfs: pathlib.Path) -> bool:
    """Return whether the loop device's backing file belongs to the instance.

    Return true for a device of another kind, such as nbd, and false for a detached one.
    """
    name = os.path.basename(device)
    if not name.startswith("loop"):
        return True
    try:
        # Any user may have chosen the name of another loop device's file.
        return instance.uuid.encode() in (sysfs / f"block/{name}/loop/backing_file").read_bytes()
    except OSError:
        return False  # detached already


def wait_for_end(host: libvirt_host.Host, instance: objects.Instance) -> None:
    """Power off the instance's container, again and again until all its processes have ended.

    Do nothing more after any other error of libvirt: Nova then destroys the guest itself and
    handles the error.

    :raises nova.exception.InstancePowerOffFailure: if processes are left after two minutes. The
        instance keeps its GPUs then, and can be stopped or deleted again.
    """
    deadline = time.monotonic() + _PATIENCE_S
    level = python_logging.INFO
    while (controller := _refused(host, instance)) is not None:
        left = ", ".join(processes(controller)) or "none that /proc shows"
        if time.monotonic() > deadline:
            raise nova_exception.InstancePowerOffFailure(
                reason=f"after {_PATIENCE_S:.0f} s these processes of its guest still run: {left}; "
                "stop or delete it again when they have ended, or boot the host again if they "
                "cannot end"
            )
        LOG.log(
            level, "Waiting for these processes of its guest to end: %s", left, instance=instance
        )
        level = python_logging.DEBUG
        time.sleep(_PAUSE_S)


def _refused(host: libvirt_host.Host, instance: objects.Instance) -> int | None:
    """Power off the guest; return its controller's pid if some of its processes did not end.

    Return ``None`` if the guest ended, does not exist, or libvirt reports another error.
    """
    try:
        guest = host.get_guest(instance)
        controller: int = guest.id
        if guest.is_active():
            guest.poweroff()
    except nova_exception.InstanceNotFound:
        return None
    except libvirt.libvirtError as error:
        return controller if _REFUSAL in str(error) else None
    return None


def processes(controller: int, proc: pathlib.Path = _PROC) -> Iterator[str]:
    """Yield a text such as ``python3 (pid 4711, state D)`` for each process of a container."""
    for pid in host_processes.pids(str(proc)):
        process = f"{proc}/{pid}"
        with contextlib.suppress(OSError):  # It has ended.
            if end_processes.controller(host_processes.control_groups(process)) == controller:
                status = host_processes.status(process)
                name, state = status.get("Name", "?"), status.get("State", "?")
                yield f"{printable(name)} (pid {pid}, state {state[:1]})"


def replace_change_of_owners() -> None:
    """Replace Nova's ``chown_for_id_maps`` in releases before 2026.2 (34), where it always fails.

    There ``nova.privsep.idmapshift.shift`` swaps the arguments of ``confirm_dir``, and raises
    ValueError for every container with id maps.
    """
    if signatures.nova_release() < _REPAIRED:
        libvirt_utils.chown_for_id_maps = change_owners


def change_owners(path: str, id_maps: list[vconfig.LibvirtConfigGuestIDMap]) -> None:
    """Shift the owners of all files in an instance's mounted root disk, by the options' id maps.

    :param id_maps: unused: the privileged process reads ``[libvirt]uid_maps`` and ``gid_maps``
    """
    nova_gpu.privsep.root_disk.shift(pathlib.Path(path).parent.name)
