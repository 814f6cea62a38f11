# SPDX-License-Identifier: Apache-2.0
"""Privileged change of a container's root disk, whose files must belong to the guest's users."""

from __future__ import annotations

import pathlib
import uuid

import nova.conf
import nova.privsep
import nova.privsep.idmapshift

import nova_gpu.privsep.entrypoint


@nova_gpu.privsep.entrypoint.entrypoint
def shift(instance_uuid: str) -> None:
    """Change the owners of the files in an instance's mounted root disk to the guest's users.

    ``[libvirt]uid_maps`` and ``gid_maps`` say which user becomes which. Nothing changes if the
    owners are changed already.

    :raises ValueError: if *instance_uuid* is not a uuid
    """
    options = nova.conf.CONF
    folder = pathlib.Path(options.instances_path, str(uuid.UUID(instance_uuid)), "rootfs")
    maps = [
        [tuple(map(int, text.split(":"))) for text in texts]
        for texts in (options.libvirt.uid_maps, options.libvirt.gid_maps)
    ]
    novas = nova.privsep.idmapshift
    if not novas.confirm_dir(str(folder), *maps, novas.NOBODY_ID):
        novas.shift_dir(str(folder), *maps, novas.NOBODY_ID)
