# SPDX-License-Identifier: Apache-2.0
"""This host, as the commands read it."""

from __future__ import annotations

from nova_gpu.cmd import libvirt_connection
from nova_gpu.virt import libvirt_version
from nova_gpu.virt.inventory import discovery


def discover() -> discovery.Discovery:
    """Return the discovery of this host, with its libvirt's version.

    :raises InvalidOption: where an option cannot be used
    """
    return discovery.Discovery(
        libvirt_version=libvirt_version.LibvirtVersion(libvirt_connection.version)
    )
