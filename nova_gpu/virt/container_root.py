# SPDX-License-Identifier: Apache-2.0
"""The mount of a container's root filesystem, for as long as its guest runs.

Nova unmounts it on the host once the guest has started, since the guest has a mount of its own.
But when a guest reboots itself, libvirt starts it again from the same folder, and so does Nova
after a soft reboot: the folder is empty then, no init is found and the guest stays down. So it
stays mounted until the guest is destroyed.
"""

from __future__ import annotations

import os

from nova import exception as nova_exception
from nova import objects
from nova.compute import power_state
from nova.virt.disk import api as disk_api
from nova.virt.libvirt import driver
from nova.virt.libvirt import utils as libvirt_utils


def is_in_use(libvirt_driver: driver.LibvirtDriver, instance: objects.Instance) -> bool:
    """Whether the guest runs. It may not even be defined, when its start has failed."""
    try:
        state: int = libvirt_driver.get_info(instance).state
    except nova_exception.InstanceNotFound:
        return False
    return state == int(power_state.RUNNING)


def unmount(instance: objects.Instance) -> None:
    """Leaves the loop device to Nova's own clean-up, which expects nothing to be mounted.

    With the mount in place that would detach the device twice, the second time perhaps from a
    guest that has just been given it.
    """
    folder = os.path.join(libvirt_utils.get_instance_path(instance), "rootfs")
    disk_api.clean_lxc_namespace(container_dir=folder)
