# SPDX-License-Identifier: Apache-2.0
"""This host, for commands: its libvirt, read-only, and the discovery of its cards."""

from __future__ import annotations

import dataclasses

import libvirt

from nova_gpu.conf import NOVAS
from nova_gpu.virt import libvirt_version
from nova_gpu.virt.inventory import discovery

# The URIs of nova.virt.libvirt.driver.LibvirtDriver._uri, which takes a second and a half to
# import.
_DEFAULT_URIS = {"lxc": "lxc:///", "parallels": "parallels:///system"}


def discover() -> discovery.Discovery:
    """Return the reader of this host's cards, which commands share with nova-compute."""
    return discovery.Discovery(libvirt_version=libvirt_version.LibvirtVersion(version))


def uri() -> str:
    """Return the URI by which nova-compute connects to libvirt."""
    own: str | None = NOVAS.libvirt.connection_uri
    return own or _DEFAULT_URIS.get(NOVAS.libvirt.virt_type, "qemu:///system")


def version() -> int:
    """Return libvirt's version as an integer, 9000000 for 9.0.0."""
    libvirt.registerErrorHandler(lambda *_: None, None)
    return int(libvirt.openReadOnly(uri()).getLibVersion())


@dataclasses.dataclass(frozen=True, slots=True)
class DomainGuest:
    """A domain with the methods of Nova's Guest that :mod:`nova_gpu.virt.usage.domains` calls."""

    domain: libvirt.virDomain

    @property
    def uuid(self) -> str:
        return str(self.domain.UUIDString())

    def get_xml_desc(self, dump_inactive: bool = False) -> str:
        """Return the domain's XML; with *dump_inactive* that of its next start."""
        return str(self.domain.XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE if dump_inactive else 0))


class Reader:
    """A reader of libvirt's domains for :mod:`nova_gpu.virt.usage.domains`, like Nova's Host.

    That class needs the message bus: it sends a notification when libvirt cannot be reached.
    """

    def list_guests(self, only_running: bool = True) -> list[DomainGuest]:
        """Return all running domains, or also those that are only defined."""
        libvirt.registerErrorHandler(lambda *_: None, None)
        connection = libvirt.openReadOnly(uri())
        flags = libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE if only_running else 0
        return [DomainGuest(domain) for domain in connection.listAllDomains(flags)]
