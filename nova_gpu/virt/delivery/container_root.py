# SPDX-License-Identifier: Apache-2.0
"""The mount of a container's root filesystem, for as long as its guest runs.

Nova unmounts it on the host once the guest has started, since the guest has a mount of its own.
But when a guest reboots itself, libvirt starts it again from the same folder, and so does Nova
after a soft reboot: the folder is empty then, no init is found and the guest stays down. So it
stays mounted until the guest is destroyed, on a host with GPUs; without them all is Nova's.
"""

from __future__ import annotations

import os
import pathlib

import nova.privsep.fs
from nova import exception as nova_exception
from nova import objects
from nova.compute import power_state
from nova.virt.libvirt import driver
from nova.virt.libvirt import utils as libvirt_utils
from oslo_concurrency import processutils
from oslo_log import log as logging

LOG = logging.getLogger(__name__)

# Where Nova notes the loop or network block device of a container's disk.
_DEVICE = "rootfs_device_name"
# The machine's own, whatever [gpu]sysfs_root says: loop devices are no part of a generated tree.
_SYSFS = pathlib.Path("/sys")


def is_in_use(libvirt_driver: driver.LibvirtDriver, instance: objects.Instance) -> bool:
    """Whether the guest runs. It may not even be defined, when its start has failed."""
    try:
        state: int = libvirt_driver.get_info(instance).state
    except nova_exception.InstanceNotFound:
        return False
    return state == int(power_state.RUNNING)


def forget_stale_device(instance: objects.Instance, sysfs: pathlib.Path = _SYSFS) -> None:
    """Takes a loop device off the instance's record that must not be detached by its name.

    Whenever Nova destroys a guest it detaches what the record says: also for a guest that was
    stopped before, or whose start has failed, and whose device is another guest's by now. If that
    one is just being started its disk is gone from under it. Of a root that is still mounted Nova
    finds the device by the mount, and would detach it twice.
    """
    device = instance.system_metadata.get(_DEVICE)
    if device and (_is_mounted(_folder(instance)) or not _is_its(device, instance, sysfs)):
        del instance.system_metadata[_DEVICE]


def detach_left_devices(instance: objects.Instance, sysfs: pathlib.Path = _SYSFS) -> None:
    """Detaches every loop device that still has a file of the instance behind it.

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
            LOG.warning("%s stays attached: %s", device, error.stderr, instance=instance)
        else:
            LOG.info("%s was left by an earlier start, and is detached", device, instance=instance)


def _folder(instance: objects.Instance) -> str:
    return os.path.join(libvirt_utils.get_instance_path(instance), "rootfs")


def _is_mounted(folder: str) -> bool:
    try:
        return os.stat(folder).st_dev != os.stat(os.path.dirname(folder)).st_dev
    except OSError:
        return False


def _is_its(device: str, instance: objects.Instance, sysfs: pathlib.Path) -> bool:
    """Whether a file of the instance is behind the loop device; devices of other kinds are."""
    name = os.path.basename(device)
    if not name.startswith("loop"):
        return True
    try:
        return instance.uuid in (sysfs / f"block/{name}/loop/backing_file").read_text()
    except OSError:
        return False  # detached already
