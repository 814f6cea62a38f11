# SPDX-License-Identifier: Apache-2.0
"""The domain of a container with GPUs: the mount of its root filesystem, and its end.

Nova unmounts the root on the host once the guest has started, since the guest has a mount of its
own. But when a guest reboots itself, libvirt starts it again from the same folder, and so does Nova
after a soft reboot: the folder is empty then, no init is found and the guest stays down. So it
stays mounted until the guest is destroyed, on a host with GPUs; without them all is Nova's.

Processes of a GPU's driver may take their time to end. libvirt gives those of a guest 3 s
(virLXCProcessStop, virCgroupKillPainfully), and twice that long once more when the guest's
controller is gone. Where one needs longer, its LXC driver (9.0, seen) has the domain as running for
good, without a process in it, and Nova's wait for the guest's end has no end either: a delete never
returns, and keeps the instance's lock.
"""

from __future__ import annotations

import logging as python_logging
import os
import pathlib
import re
import time
from collections.abc import Iterator

import libvirt
import nova.privsep.fs
from nova import exception as nova_exception
from nova import objects
from nova.compute import power_state
from nova.virt.libvirt import driver
from nova.virt.libvirt import host as libvirt_host
from nova.virt.libvirt import utils as libvirt_utils
from oslo_concurrency import processutils
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

# Where Nova notes the loop or network block device of a container's disk.
_DEVICE = "rootfs_device_name"
# The machine's own, whatever [gpu]sysfs_root says: loop devices are no part of a generated tree.
_SYSFS = pathlib.Path("/sys")
_PATIENCE_S = 120.0
_PAUSE_S = 0.5
# libvirt, src/lxc/lxc_process.c: an internal error that has no number of its own
_REFUSAL = "Some processes refused to die"
_PROC = pathlib.Path("/proc")


def is_in_use(libvirt_driver: driver.LibvirtDriver, instance: objects.Instance) -> bool:
    """Return whether the guest runs.

    It may not even be defined, when its start has failed.
    """
    try:
        state: int = libvirt_driver.get_info(instance).state
    except nova_exception.InstanceNotFound:
        return False
    return state == int(power_state.RUNNING)


def forget_stale_device(instance: objects.Instance, sysfs: pathlib.Path = _SYSFS) -> None:
    """Take a loop device off the instance's record that must not be detached by its name.

    Whenever Nova destroys a guest it detaches what the record says: also for a guest that was
    stopped before, or whose start has failed, and whose device is another guest's by now. If that
    one is just being started its disk is gone from under it. Of a root that is still mounted Nova
    finds the device by the mount, and would detach it twice.
    """
    device = instance.system_metadata.get(_DEVICE)
    if device and (_is_mounted(_folder(instance)) or not _is_its(device, instance, sysfs)):
        del instance.system_metadata[_DEVICE]


def detach_left_devices(instance: objects.Instance, sysfs: pathlib.Path = _SYSFS) -> None:
    """Detach every loop device that still has a file of the instance behind it.

    Nova detaches the one that the record names, and nova-compute may have died after it made one
    and before it wrote that down. The guest is gone, and so is the mount of its root.
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


def _folder(instance: objects.Instance) -> str:
    return os.path.join(libvirt_utils.get_instance_path(instance), "rootfs")


def _is_mounted(folder: str) -> bool:
    try:
        return os.stat(folder).st_dev != os.stat(os.path.dirname(folder)).st_dev
    except OSError:
        return False


def _is_its(device: str, instance: objects.Instance, sysfs: pathlib.Path) -> bool:
    """Return whether a file of the instance is behind the loop device.

    Devices of other kinds are.
    """
    name = os.path.basename(device)
    if not name.startswith("loop"):
        return True
    try:
        return instance.uuid in (sysfs / f"block/{name}/loop/backing_file").read_text()
    except OSError:
        return False  # detached already


def wait_for_end(host: libvirt_host.Host, instance: objects.Instance) -> None:
    """Ask libvirt again and again to end the guest of *instance*, a container of a host with GPUs.

    What else libvirt says is left to Nova, which asks once more and judges it.

    :raises nova.exception.InstancePowerOffFailure: when processes are left after two minutes. The
        instance keeps its GPUs then, and can be stopped or deleted again.
    """
    deadline = time.monotonic() + _PATIENCE_S
    level = python_logging.INFO
    while (controller := _refused(host, instance)) is not None:
        left = f"of its guest there are still: {', '.join(processes(controller)) or 'none'}"
        if time.monotonic() > deadline:
            raise nova_exception.InstancePowerOffFailure(
                reason=f"after {_PATIENCE_S:.0f} s {left}; stop or delete it again when they have "
                f"ended, or boot the host again if they cannot"
            )
        LOG.log(level, "Waiting, since %s", left, instance=instance)
        level = python_logging.DEBUG
        time.sleep(_PAUSE_S)


def _refused(host: libvirt_host.Host, instance: objects.Instance) -> int | None:
    """Return the pid of the guest's controller, when libvirt says that processes refuse to die."""
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
    r"""Yield ``python3 (pid 4711, state D)`` for all in the guest's control group.

    It is named after its controller: ``lxc-4710-instance-00000001.libvirt-lxc``, by systemd with
    ``\x2d`` for -.
    """
    dash = r"(-|\\x2d)"
    group = re.compile(rf"lxc{dash}{controller}{dash}")
    for process in proc.glob("[0-9]*"):
        try:
            if group.search((process / "cgroup").read_text()):
                name, _, rest = (process / "stat").read_text().rpartition(")")
                yield f"{name.partition('(')[2]} (pid {process.name}, state {rest.split()[0]})"
        except OSError:
            continue  # It has ended.
