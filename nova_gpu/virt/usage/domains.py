# SPDX-License-Identifier: Apache-2.0
"""Which GPUs libvirt's domains name, Nova's and all others."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from types import MappingProxyType
from typing import TYPE_CHECKING

import libvirt
from lxml import etree
from oslo_log import log as logging

from nova_gpu.conf import novas
from nova_gpu.core import device, exception
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu import vgpu_capacity
from nova_gpu.core.vgpu.vgpu import DividedCard, Slot
from nova_gpu.host import nodes
from nova_gpu.host.roots import Roots

if TYPE_CHECKING:  # importing it takes 1.5 s, which nova-gpu list need not spend
    from nova.virt.libvirt import host as libvirt_host

LOG = logging.getLogger(__name__)

NAMESPACE = "urn:nova-gpu:domain:1"
# In the running domain alone: what its nodes led to and may lead to no more
_REACHED = "urn:nova-gpu:reached:1"
# Of the metadata that Nova gives each of its guests (nova.virt.libvirt.config.NOVA_NS), but the
# number at its end.
_NOVAS = "http://openstack.org/xmlns/libvirt/nova/"
# VIR_DOMAIN_METADATA_ELEMENT and VIR_DOMAIN_AFFECT_LIVE of libvirt-domain.h
_ELEMENT, _LIVE = 2, 1
# In the place of a profile that only NVML tells
_UNKNOWN = "mig"


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """The GPUs of a host as domains name them: device nodes by path, PCI functions by address.

    ``node_by_number`` has the nodes by what they lead to, for one that a domain names otherwise;
    ``nodes_by_instance`` what it takes to open each MIG instance that there is.
    """

    card_by_node: Mapping[str, Device]
    card_by_function: Mapping[PciAddress, PciAddress]
    node_by_number: Mapping[int, str] = dataclasses.field(default_factory=dict)
    number: Callable[[str], int | None] = lambda node: None
    nodes_by_instance: Mapping[Slot, frozenset[str]] = dataclasses.field(default_factory=dict)

    def card_of(self, node: str) -> Device | None:
        """Return which card's alone *node* is."""
        return self.card_by_node.get(self.known(node))

    def known(self, node: str) -> str:
        """Return *node* by the name that it has here."""
        if node in self.card_by_node or not self.node_by_number:
            return node
        number = self.number(node)
        return node if number is None else self.node_by_number.get(number, node)

    def opened_by(self, known: Set[str]) -> frozenset[Device]:
        """Return what all of these nodes together open.

        Of a card that is divided now its MIG instances, each by all of its nodes, and nothing by
        the card's own alone.
        """
        divided = {slot.parent for slot in self.nodes_by_instance}
        cards = (self.card_by_node.get(node) for node in known)
        whole = frozenset(card for card in cards if card and device.function(card) not in divided)
        return whole.union(s for s, needed in self.nodes_by_instance.items() if needed <= known)


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """The GPUs of one domain.

    ``own`` is what its metadata says and its PCI devices are; for a container without metadata what
    its nodes lead to. ``reached`` is what the nodes of a running container lead to beyond those:
    their numbers have become another card's, or another MIG instance's, since it was started. One
    node of a MIG instance is enough for that: other guests do not get what it may still be able to
    use. ``opened`` is what it can open now: nothing unless it runs, and for a container what its
    nodes open together, whatever its metadata says and whatever the card is given as. ``led`` is
    what the nodes of a running container lead to, and ``run`` libvirt's number of it, another one
    at each start.
    """

    own: frozenset[Device] = frozenset()
    reached: frozenset[Device] = frozenset()
    opened: frozenset[Device] = frozenset()
    led: frozenset[Device] = frozenset()
    run: str | None = None

    @property
    def every(self) -> frozenset[Device]:
        return self.own | self.reached

    def and_also(self, other: Named) -> Named:
        """Return what it has by both."""
        own = self.own | other.own
        reached = (self.reached | other.reached) - own
        opened, led = self.opened | other.opened, self.led | other.led
        return Named(own, reached, opened, led, self.run or other.run)

    def since(self, before: Named | None) -> Named:
        """Add what the same run of the container could open earlier, by *before*.

        No list of open files shows a file that a process has sent to itself over a socket, mapped
        or registered with io_uring: what a guest could open it may have open until it has ended.
        """
        if before is None or self.run is None or self.run != before.run:
            return self
        return self.with_earlier(before.led)

    def with_earlier(self, led: frozenset[Device]) -> Named:
        """Add what its nodes *led* to, except its own devices."""
        own = {*self.own, *(slot.place for slot in device.slots(self.own))}
        earlier = {
            node
            for node in led
            if not own & {node, device.function(node), getattr(node, "place", node)}
        }
        return dataclasses.replace(self, led=self.led | led, reached=self.reached | earlier)


def parts(
    gpus: Iterable[GPU],
    roots: Roots,
    divided: Iterable[DividedCard] = (),
    undivided: Iterable[GPU] = (),
) -> Parts:
    """Return the card of *gpus* behind each PCI function and each node that is one card's alone.

    :param divided: those that are given in parts, of which each function is its own, and a node
        that is one MIG instance's alone is that one's
    :param undivided: those of them that are whole again: who has a card's node, as
        who has a MIG instance does, can open all of it
    """
    whole, in_parts = tuple(gpus), tuple(divided)
    slots = [slot for card in in_parts for slot in vgpu_capacity.all_instances(card)]
    by_node: dict[str, Device] = {
        node: slot for slot in slots for node in nodes.own_instance_nodes(slot, roots)
    }
    cards = (*whole, *undivided)
    by_node |= {node: gpu.address for gpu in cards for node in nodes.card_nodes(gpu, roots)}
    instances = _nodes_by_instance(by_node.values(), slots, roots)
    every = by_node.keys() | frozenset[str]().union(*instances.values())
    numbers = {nodes.number(node, roots): node for node in every}
    return Parts(
        by_node,
        {parent: parent for card in in_parts for parent in card.parents}
        | {function: gpu.address for gpu in whole for function in gpu.functions},
        {number: node for number, node in numbers.items() if number is not None},
        lambda node: nodes.number(node, roots),
        instances,
    )


def _nodes_by_instance(
    with_nodes: Iterable[Device], slots: Collection[Slot], roots: Roots
) -> dict[Slot, frozenset[str]]:
    """Return the MIG instances that the driver has of these, also of a card that is given whole.

    :param slots: those of which it is known what they are
    """
    known = {(slot.parent, slot.number): slot for slot in slots}
    return {
        known.get((address, number)) or Slot(address, _UNKNOWN, number): frozenset(own)
        for address in set(map(device.function, (*with_nodes, *slots)))
        for number, own in nodes.nodes_by_instance(address, roots).items()
    }


def look(
    host: libvirt_host.Host, parts: Parts, before: Mapping[str, Named] = MappingProxyType({})
) -> dict[str, Named]:
    """Return what each domain has, running or only defined, by the domain's uuid.

    :param before: what an earlier look has found, of which running guests may have files open
    :raises DomainsUnreadable: where libvirt does not list them
    """
    guests: dict[str, Named] = {}
    for uuid, xml in _domains(host):
        guests[uuid] = guests.get(uuid, Named()).and_also(named_in(xml, parts))
    return {uuid: item.since(before.get(uuid)) for uuid, item in guests.items()}


def note_reached(host: libvirt_host.Host, reached: Mapping[str, frozenset[Device]]) -> None:
    """Write what running guests have reached into their running domains, which end with them.

    A later service cannot see it where their nodes lead elsewhere by then.

    :raises DomainsUnreadable: where libvirt does not list them
    """
    with _unreadable():
        paths = [
            (guest, _metadata(_parsed(guest.get_xml_desc()), _REACHED))
            for guest in host.list_guests(only_running=True)
            if guest.uuid in reached
        ]
    for guest, noted in paths:
        if not reached[guest.uuid] <= (noted or frozenset()):
            element = etree.Element("gpus")
            for node in sorted(map(str, reached[guest.uuid] | (noted or frozenset()))):
                etree.SubElement(element, "gpu", address=node)
            xml, kind = etree.tostring(element, encoding="unicode"), _ELEMENT
            try:
                guest._domain.setMetadata(kind, xml, "reached", _REACHED, _LIVE)
            except libvirt.libvirtError as error:
                LOG.warning(
                    "Failed to record in its domain what the guest %s reaches, will retry in the "
                    "next period: %s",
                    *(guest.uuid, error),
                )


def stop(host: libvirt_host.Host, uuids: Collection[str]) -> dict[str, str | None]:
    """Stop these guests at once, by uuid; return each with why it runs still, or ``None``.

    Nova sees that they have ended as if they had done so by themselves.

    :raises DomainsUnreadable: where libvirt does not list them
    """
    failures: dict[str, str | None] = {}
    with _unreadable():
        guests = [guest for guest in host.list_guests(only_running=True) if guest.uuid in uuids]
    for guest in guests:
        try:
            guest.poweroff()
        except libvirt.libvirtError as error:
            failures[guest.uuid] = str(error)
        else:
            failures[guest.uuid] = None
    return failures


def running(host: libvirt_host.Host) -> frozenset[str]:
    """Return uuids of the domains that run.

    :raises DomainsUnreadable: where libvirt does not list them
    """
    with _unreadable():
        return frozenset(guest.uuid for guest in host.list_guests(only_running=True))


def mount_sources(host: libvirt_host.Host) -> frozenset[str]:
    """Return the host's files and folders that any domain has bound, running or only defined.

    :raises DomainsUnreadable: where libvirt does not list them
    """
    return frozenset(
        source.get("dir", "")
        for _, xml in _domains(host)
        for source in _parsed(xml).iterfind("devices/filesystem/source[@dir]")
    )


def device_nodes(host: libvirt_host.Host) -> frozenset[str]:
    """Return the host's device nodes of any domain, running or only defined, and its other binds.

    :raises DomainsUnreadable: where libvirt does not list them
    """
    return frozenset(node for _, xml in _domains(host) for node in _nodes(_parsed(xml)))


def running_nodes(host: libvirt_host.Host) -> list[tuple[frozenset[Device], frozenset[str]]]:
    """Return the devices of each running container of ours, and the nodes that it has.

    :raises DomainsUnreadable: where libvirt does not list them
    """
    with _unreadable():
        xmls = [guest.get_xml_desc() for guest in host.list_guests(only_running=True)]
    nodes_by_guest = (
        (_metadata(domain), frozenset(_made(domain))) for domain in map(_parsed, xmls)
    )
    return [(own, nodes) for own, nodes in nodes_by_guest if own and nodes]


def _domains(host: libvirt_host.Host) -> list[tuple[str, str]]:
    """Return uuid and XML of every domain.

    Of one that runs and is not Nova's, also as it is to start next time: it may have another card
    then, and libvirt-LXC will not refuse it.
    """
    with _unreadable():
        return list(_listed(host))


@contextlib.contextmanager
def _unreadable() -> Iterator[None]:
    """Turn errors of a libvirt that does not answer into DomainsUnreadable.

    :raises DomainsUnreadable: with the error
    """
    try:
        yield
    except libvirt.libvirtError as error:
        raise exception.DomainsUnreadable(str(error)) from error
    except novas.raised("HypervisorUnavailable") as error:
        # Nova's word for a libvirt that cannot be reached at all; what libvirt said is behind it.
        raise exception.DomainsUnreadable(str(error.__context__ or error)) from error


def _listed(host: libvirt_host.Host) -> Iterator[tuple[str, str]]:
    for guest in host.list_guests(only_running=False):
        try:
            xmls = [guest.get_xml_desc()]
            if _NOVAS not in xmls[0] and _runs(_parsed(xmls[0])):
                xmls.append(guest.get_xml_desc(dump_inactive=True))
        except libvirt.libvirtError as error:
            if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                raise
            continue  # gone since it was listed
        yield from ((guest.uuid, xml) for xml in xmls)


def gpus_in(xml: str, parts: Parts) -> frozenset[Device]:
    """Return the GPUs that one domain's XML names, or its running guest reaches.

    :raises DomainsUnreadable: where it is nothing that libvirt writes
    """
    return named_in(xml, parts).every


def named_in(xml: str, parts: Parts) -> Named:
    """Return the GPUs that one domain's XML names, in its metadata and its devices.

    Of a container with metadata that does not run the device nodes count for nothing: their numbers
    may be another card's by now, and it gets others when it starts. One that runs can open what
    they lead to now, whatever its metadata says; a node that it only has bound opens nothing, as
    libvirt's device cgroup allows those that it has made (virLXCCgroupSetupDeviceACL). PCI
    addresses stay: an operator may have added one, or copied the domain. Edited metadata that is no
    address is ignored. Who has one function of a card has the card; other devices of
    the host that a guest may have are left out. A virtual function of which the metadata says which
    vGPU that is counts as that vGPU.

    :raises DomainsUnreadable: where it is nothing that libvirt writes
    """
    domain = _parsed(xml)
    ours = _metadata(domain)
    vgpus = {slot.parent for slot in device.slots(ours or ())}
    devices: list[Device | None] = [
        parts.card_by_function.get(function)
        for function in _hostdevs(domain)
        if function not in vgpus
    ]
    functions = frozenset(dev for dev in devices if dev)
    own = functions | (ours or frozenset())
    runs = _runs(domain)
    if ours is not None and not runs:
        return Named(own)
    known = frozenset(map(parts.known, _nodes(domain) if ours is None else _made(domain)))
    nodes = frozenset(card for card in map(parts.card_by_node.get, known) if card)
    addresses = functions if domain.get("type") == "lxc" else own
    opened = addresses | parts.opened_by(known) if runs else frozenset[Device]()
    led = nodes if runs else frozenset[Device]()
    if ours is None:
        return Named(own | nodes, frozenset(), opened, led, domain.get("id"))
    now = Named(own, nodes - own, opened, led, domain.get("id"))
    return now.with_earlier(_metadata(domain, _REACHED) or frozenset())


def renamed(xml: str, gone: Collection[Device], new: Iterable[Device]) -> str:
    """Return *xml* whose metadata names *new* in the place of *gone*.

    As it is to be on another host.

    :raises DomainsUnreadable: where it is nothing that libvirt writes
    """
    domain = _parsed(xml)
    ours = domain.find(f"metadata/{{{NAMESPACE}}}gpus")
    if ours is None:
        return xml
    left = {str(dev) for dev in gone}
    for element in list(ours):
        if element.get("address") in left:
            ours.remove(element)
    for dev in new:
        etree.SubElement(ours, f"{{{NAMESPACE}}}gpu", address=str(dev))
    return str(etree.tostring(domain, encoding="unicode"))


def without(xml: str, devices: Collection[Device], parts: Parts, mdevs: Collection[str]) -> str:
    """Return *xml* without these *devices*; its metadata stays, and names the rest.

    :param mdevs: the uuids of those that are mediated devices
    :raises DomainsUnreadable: where it is nothing that libvirt writes
    """
    domain = _parsed(xml)
    named = {str(dev) for dev in devices}
    for element in domain.findall(f"metadata/{{{NAMESPACE}}}gpus/*"):
        if element.get("address") in named:
            _remove(element)
    functions = {slot.parent for slot in device.slots(devices)}
    for hostdev in domain.findall("devices/hostdev"):
        nodes = [char.text or "" for char in hostdev.iterfind("source/char")]
        of_cards = [
            parts.card_by_function.get(function) in devices or function in functions
            for function in _functions(hostdev)
        ]
        is_made = any(
            address.get("uuid") in mdevs for address in hostdev.iterfind("source/address")
        )
        if any(of_cards) or is_made or any(parts.card_of(node) in devices for node in nodes):
            _remove(hostdev)
    for source in domain.findall("devices/filesystem/source[@dir]"):
        filesystem = source.getparent()
        if filesystem is not None and parts.card_of(source.get("dir", "")) in devices:
            _remove(filesystem)
    return str(etree.tostring(domain, encoding="unicode"))


def _remove(element: etree._Element) -> None:
    parent = element.getparent()
    if parent is not None:
        parent.remove(element)


def _parsed(xml: str) -> etree._Element:
    """Parse XML.

    :raises DomainsUnreadable: where it is no XML
    """
    try:
        return etree.fromstring(xml.encode())
    except (etree.XMLSyntaxError, ValueError) as error:
        raise exception.DomainsUnreadable(f"a domain's XML cannot be parsed: {error}") from error


def _runs(domain: etree._Element) -> bool:
    """Return whether the domain runs: libvirt numbers active ones only (formatdomain.html)."""
    return domain.get("id") is not None


def _metadata(domain: etree._Element, namespace: str = NAMESPACE) -> frozenset[Device] | None:
    ours = domain.find(f"metadata/{{{namespace}}}gpus")
    if ours is not None:
        with contextlib.suppress(exception.InvalidValue):
            gpus = ours.iterchildren(tag=etree.Element)  # and no comment of somebody's
            return frozenset(device.parse(gpu.get("address", "")) for gpu in gpus)
    return None


def _hostdevs(domain: etree._Element) -> Iterator[PciAddress]:
    for hostdev in domain.iterfind("devices/hostdev"):
        yield from _functions(hostdev)


def _functions(hostdev: etree._Element) -> Iterator[PciAddress]:
    if hostdev.get("type") != "pci":
        return
    for address in hostdev.iterfind("source/address"):
        texts = [address.get(part, "0") for part in ("domain", "bus", "slot", "function")]
        try:
            yield PciAddress(*(int(text, 16) for text in texts))
        except ValueError as error:
            reason = f"a domain has a PCI device at {':'.join(texts)}"
            raise exception.DomainsUnreadable(reason) from error


def _nodes(domain: etree._Element) -> Iterator[str]:
    yield from _made(domain)
    for source in domain.iterfind("devices/filesystem/source[@dir]"):
        yield source.get("dir", "")


def _made(domain: etree._Element) -> Iterator[str]:
    """Yield the nodes that libvirt makes in a container and that its device cgroup allows."""
    for char in domain.iterfind("devices/hostdev[@type='misc']/source/char"):
        yield char.text or ""
