# SPDX-License-Identifier: Apache-2.0
"""The owners of the files in an LXC guest's root disk."""

from __future__ import annotations

import pathlib

from nova.virt.libvirt import config as vconfig
from nova.virt.libvirt import utils as libvirt_utils

import nova_gpu.privsep.root_disk
from nova_gpu.virt import signatures

# The first release whose nova.privsep.idmapshift.shift works
_REPAIRED = 34


def replace_change_of_owners() -> None:
    """Replace Nova's ``chown_for_id_maps`` in releases before 2026.2 (34), where it always fails.

    There ``nova.privsep.idmapshift.shift`` swaps the arguments of ``confirm_dir``, and raises
    ValueError for every container with id maps.
    """
    if signatures.nova_release() < _REPAIRED:
        libvirt_utils.chown_for_id_maps = change_owners


def change_owners(path: str, id_maps: list[vconfig.LibvirtConfigGuestIDMap]) -> None:
    """Shift the owners of all files in an instance's mounted root disk, by the options' id maps.

    :param path: the mount, ``UUID/rootfs`` below ``[DEFAULT]instances_path``
    :param id_maps: unused: the privileged process reads ``[libvirt]uid_maps`` and ``gid_maps``
    """
    nova_gpu.privsep.root_disk.shift(pathlib.Path(path).parent.name)
