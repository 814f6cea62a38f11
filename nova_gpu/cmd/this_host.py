# SPDX-License-Identifier: Apache-2.0
"""The discovery of this host's cards, for commands."""

from __future__ import annotations

from nova_gpu.cmd import libvirt_connection
from nova_gpu.virt import libvirt_version
from nova_gpu.virt.inventory import discovery


def discover() -> discovery.Discovery:
    """Return the reader of this host's cards, which commands share with nova-compute.

    :raises InvalidOption: if the value of an option is invalid
    """
    return discovery.Discovery(
        libvirt_version=libvirt_version.LibvirtVersion(libvirt_connection.version)
    )
