# SPDX-License-Identifier: Apache-2.0
"""libvirt, for commands that only read."""

from __future__ import annotations

import libvirt
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import guest as libvirt_guest
from nova.virt.libvirt import host as libvirt_host


def open_host() -> libvirt_host.Host:
    """As nova-compute asks it, but for the events that nobody waits for here."""
    host = libvirt_host.Host(libvirt_driver.LibvirtDriver._uri(), read_only=True)
    # The errors are raised as well, and what subscribes to events does not complain of them.
    libvirt_host.libvirt.registerErrorHandler(lambda *_: None, None)
    libvirt_host.libvirt.virEventRegisterDefaultImpl()
    return host


class Reader:
    """What :mod:`nova_gpu.virt.usage.domains` asks of a Host, where there is no bus: Nova's own
    sends a notification when libvirt cannot be reached.
    """

    def list_guests(self, only_running: bool = True) -> list[libvirt_guest.Guest]:
        """:raises libvirt.libvirtError: where it does not say"""
        libvirt.registerErrorHandler(lambda *_: None, None)
        connection = libvirt.openReadOnly(libvirt_driver.LibvirtDriver._uri())
        flags = libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE if only_running else 0
        return [libvirt_guest.Guest(domain) for domain in connection.listAllDomains(flags)]
