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
    """Replace Nova's change of owners where it fails for every container with id maps.

    Before Nova 2026.2 (34) ``nova.privsep.idmapshift.shift`` confuses the arguments of
    ``confirm_dir``, and ends with a ValueError.
    """
    if signatures.nova_release() < _REPAIRED:
        libvirt_utils.chown_for_id_maps = change_owners


def change_owners(path: str, id_maps: list[vconfig.LibvirtConfigGuestIDMap]) -> None:
    """Give an instance's mounted root disk, ``UUID/rootfs``, to the ids of the options."""
    nova_gpu.privsep.root_disk.shift(pathlib.Path(path).parent.name)
