# SPDX-License-Identifier: Apache-2.0
"""Which GPUs libvirt's domains name, Nova's and anybody else's."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import libvirt
from lxml import etree
from nova import exception as nova_exception
from oslo_log import log as logging

from nova_gpu.core import device, exception
from nova_gpu.core.device import Device
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot

if TYPE_CHECKING:  # importing it takes 1.5 s, which nova-gpu list need not spend
    from nova.virt.libvirt import host as libvirt_host

LOG = logging.getLogger(__name__)

NAMESPACE = "urn:nova-gpu:domain:1"


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """What a domain may name of a host's GPUs: device nodes by path, PCI functions by address."""

    card_by_node: Mapping[str, Device]
    card_by_function: Mapping[PciAddress, PciAddress]


def gpus_by_domain(host: libvirt_host.Host, parts: Parts) -> dict[str, frozenset[Device]]:
    """The GPUs that each domain names, running or only defined, by the domain's uuid.

    :raises DomainsUnreadable: where libvirt does not list them
    """
    return {uuid: gpus_in(xml, parts) for uuid, xml in _domains(host)}


def running(host: libvirt_host.Host) -> frozenset[str]:
    """uuids of the domains that run

    :raises DomainsUnreadable: where libvirt does not list them
    """
    with _unreadable():
        return frozenset(guest.uuid for guest in host.list_guests(only_running=True))


def mount_sources(host: libvirt_host.Host) -> frozenset[str]:
    """The host's files and folders that any domain has bound, running or only defined.

    :raises DomainsUnreadable: where libvirt does not list them
    """
    return frozenset(
        source.get("dir", "")
        for _, xml in _domains(host)
        for source in _parsed(xml).iterfind("devices/filesystem/source[@dir]")
    )


def _domains(host: libvirt_host.Host) -> list[tuple[str, str]]:
    """uuid and XML of every domain"""
    with _unreadable():
        return list(_listed(host))


@contextlib.contextmanager
def _unreadable() -> Iterator[None]:
    """:raises DomainsUnreadable: for whatever says that libvirt does not answer"""
    try:
        yield
    except libvirt.libvirtError as error:
        raise exception.DomainsUnreadable(str(error)) from error
    except nova_exception.HypervisorUnavailable as error:
        # Nova's word for a libvirt that cannot be reached at all; what libvirt said is behind it.
        raise exception.DomainsUnreadable(str(error.__context__ or error)) from error


def _listed(host: libvirt_host.Host) -> Iterator[tuple[str, str]]:
    for guest in host.list_guests(only_running=False):
        try:
            xml = guest.get_xml_desc()
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise
            continue  # gone since it was listed
        yield guest.uuid, xml


def gpus_in(xml: str, parts: Parts) -> frozenset[Device]:
    """The GPUs that one domain's XML names: those of our metadata, and of its devices.

    Of a container with metadata the device nodes count for nothing, as their numbers may be another
    card's by now. PCI addresses stay: somebody may have added one, or copied the domain. Metadata
    that somebody edited into what is no address is none. Who has one function of a card has the
    card; other devices of the host that a guest may have are left out. A virtual function of which
    the metadata says which vGPU that is counts as that vGPU.

    :raises DomainsUnreadable: where it is nothing that libvirt writes
    """
    domain = _parsed(xml)
    ours = _metadata(domain)
    vgpus = {each.parent for each in ours or () if isinstance(each, Slot)}
    found: list[Device | None] = [
        parts.card_by_function.get(function)
        for function in _hostdevs(domain)
        if function not in vgpus
    ]
    if ours is None:
        found += [parts.card_by_node.get(node) for node in _nodes(domain)]
    return frozenset(each for each in found if each) | (ours or frozenset())


def renamed(xml: str, gone: Collection[Device], new: Iterable[Device]) -> str:
    """*xml* whose metadata names *new* in the place of *gone*: as it is to be on another host.

    :raises DomainsUnreadable: where it is nothing that libvirt writes
    """
    domain = _parsed(xml)
    ours = domain.find(f"metadata/{{{NAMESPACE}}}gpus")
    if ours is None:
        return xml
    left = {str(each) for each in gone}
    for element in list(ours):
        if element.get("address") in left:
            ours.remove(element)
    for each in new:
        etree.SubElement(ours, f"{{{NAMESPACE}}}gpu", address=str(each))
    return str(etree.tostring(domain, encoding="unicode"))


def _parsed(xml: str) -> etree._Element:
    """:raises DomainsUnreadable: where it is no XML"""
    try:
        return etree.fromstring(xml.encode())
    except (etree.XMLSyntaxError, ValueError) as error:
        raise exception.DomainsUnreadable(f"a domain's XML cannot be parsed: {error}") from error


def _metadata(domain: etree._Element) -> frozenset[Device] | None:
    ours = domain.find(f"metadata/{{{NAMESPACE}}}gpus")
    if ours is not None:
        with contextlib.suppress(exception.InvalidValue):
            gpus = ours.iterchildren(tag=etree.Element)  # and no comment of somebody's
            return frozenset(device.parse(each.get("address", "")) for each in gpus)
    return None


def _hostdevs(domain: etree._Element) -> Iterator[PciAddress]:
    for address in domain.iterfind("devices/hostdev[@type='pci']/source/address"):
        texts = [address.get(part, "0") for part in ("domain", "bus", "slot", "function")]
        try:
            yield PciAddress(*(int(text, 16) for text in texts))
        except ValueError as error:
            reason = f"a domain has a PCI device at {':'.join(texts)}"
            raise exception.DomainsUnreadable(reason) from error


def _nodes(domain: etree._Element) -> Iterator[str]:
    for char in domain.iterfind("devices/hostdev[@type='misc']/source/char"):
        yield char.text or ""
    for source in domain.iterfind("devices/filesystem/source[@dir]"):
        yield source.get("dir", "")
