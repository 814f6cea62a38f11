# SPDX-License-Identifier: Apache-2.0
"""The devices that libvirt's domains name and reach: Nova's domains and all others.

If libvirt does not answer, or a domain's XML is not of its format, DomainsUnreadable is raised.
"""

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
from nova_gpu.core.vgpu.vgpu import DividedCard, Slot, device_uuid
from nova_gpu.host import nodes
from nova_gpu.host.roots import Roots

if TYPE_CHECKING:  # importing it takes 1.5 s, which nova-gpu list need not spend
    from nova.virt.libvirt import host as libvirt_host

LOG = logging.getLogger(__name__)

NAMESPACE = "urn:nova-gpu:domain:1"
# The namespace of metadata of running domains only: devices that their nodes led to earlier
_REACHED = "urn:nova-gpu:reached:1"
# The namespace of the metadata of Nova's guests, without its version at the end
# (nova.virt.libvirt.config.NOVA_NS)
_NOVAS = "http://openstack.org/xmlns/libvirt/nova/"
# VIR_DOMAIN_METADATA_ELEMENT and VIR_DOMAIN_AFFECT_LIVE of libvirt-domain.h
_ELEMENT, _LIVE = 2, 1
# Stands for the profile of a MIG instance, which only NVML reports
_UNKNOWN = "mig"


@dataclasses.dataclass(frozen=True, slots=True)
class Parts:
    """The mapping from what domains name, device nodes and PCI functions, to the host's devices.

    ``card_by_node``: the device that the node at a path belongs to alone. ``card_by_function``: the
    card of a PCI function; on a divided card, the function itself. ``node_by_number``: the path of
    each node by its device number, to recognise a node that a domain names by another path;
    ``number`` reads the device number of a path. ``nodes_by_instance``: the nodes that a guest
    needs to open each MIG instance. ``vgpus_by_guest``: the vGPUs of each guest, by its uuid, to
    recognise them in a domain that names functions and mediated devices only.
    """

    card_by_node: Mapping[str, Device]
    card_by_function: Mapping[PciAddress, PciAddress]
    node_by_number: Mapping[int, str] = dataclasses.field(default_factory=dict)
    number: Callable[[str], int | None] = lambda node: None
    nodes_by_instance: Mapping[Slot, frozenset[str]] = dataclasses.field(default_factory=dict)
    vgpus_by_guest: Mapping[str, Collection[Slot]] = dataclasses.field(default_factory=dict)

    def card_of(self, node: str) -> Device | None:
        """Return the device whose own node the path *node* is; ``None`` for any other node."""
        return self.card_by_node.get(self.known(node))

    def known(self, node: str) -> str:
        """Return the path in the mappings of the node that a domain names by the path *node*.

        Return *node* itself if the mappings do not have the node.
        """
        if node in self.card_by_node or not self.node_by_number:
            return node
        number = self.number(node)
        return node if number is None else self.node_by_number.get(number, node)

    def opened_by(self, known: Set[str]) -> frozenset[Device]:
        """Return the devices that a guest with these nodes can open.

        Of a card that is divided now these are the MIG instances whose nodes are all in *known*.
        The card's own node alone opens none of them.

        :param known: paths as :meth:`known` returns them
        """
        divided = {slot.parent for slot in self.nodes_by_instance}
        cards = (self.card_by_node.get(node) for node in known)
        whole = frozenset(card for card in cards if card and device.function(card) not in divided)
        return whole.union(s for s, needed in self.nodes_by_instance.items() if needed <= known)


@dataclasses.dataclass(frozen=True, slots=True)
class DomainDevices:
    """The devices of one domain.

    ``own``: the devices that its metadata and its PCI devices name. For a container without
    metadata, the devices whose nodes it has.

    ``reached``: other devices to which the nodes of a running container lead, now or earlier since
    its start, because the driver has given a node's number to another card or MIG instance. One
    node of a MIG instance suffices: other guests do not get a device that this one may still use.

    ``opened``: the devices that it can open now, none unless it runs. For a container these are the
    devices that its nodes open together, whatever its metadata names and however guests get the
    card.

    ``led``: all devices to which the nodes of a running container lead. ``run``: libvirt's id of
    the running domain, a new one at each start. ``cells``: the NUMA nodes of the host on which Nova
    has put the cells of a running guest, empty without cells.
    """

    own: frozenset[Device] = frozenset()
    reached: frozenset[Device] = frozenset()
    opened: frozenset[Device] = frozenset()
    led: frozenset[Device] = frozenset()
    run: str | None = None
    cells: frozenset[int] = frozenset()

    @property
    def every(self) -> frozenset[Device]:
        return self.own | self.reached

    def and_also(self, other: DomainDevices) -> DomainDevices:
        """Return the devices of this and *other*, which are two definitions of the same domain."""
        own = self.own | other.own
        reached = (self.reached | other.reached) - own
        opened, led = self.opened | other.opened, self.led | other.led
        cells = self.cells | other.cells
        return DomainDevices(own, reached, opened, led, self.run or other.run, cells)

    def since(self, before: DomainDevices | None) -> DomainDevices:
        """Return this with the devices to which the container's nodes led earlier in the same run.

        It may have them open until it ends: no list of open files shows a file that a process has
        sent to itself over a socket, mapped, or registered with io_uring.

        :param before: the devices of the same domain at the last reading, if it was there
        """
        if before is None or self.run is None or self.run != before.run:
            return self
        return self.with_earlier(before.led)

    def with_earlier(self, led: frozenset[Device]) -> DomainDevices:
        """Return this with *led*, to which its nodes led earlier, also ``reached`` unless own."""
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
    vgpus: Mapping[str, Collection[Slot]] = MappingProxyType({}),
) -> Parts:
    """Return the mapping from the host's device nodes and PCI functions to its devices.

    :param gpus: the cards that guests get whole
    :param divided: the cards that guests get vGPUs of: each function stands for itself, and a node
        of a single MIG instance for that instance
    :param undivided: those cards of *divided* that are no longer divided: a guest with such a
        card's node, as guests with a MIG instance have it, can open the whole card
    :param vgpus: ``vgpus_by_guest`` of :class:`Parts`
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
        vgpus,
    )


def _nodes_by_instance(
    with_nodes: Iterable[Device], slots: Collection[Slot], roots: Roots
) -> dict[Slot, frozenset[str]]:
    """Return the paths of the nodes of each MIG instance that exists, also on cards given whole.

    :param with_nodes: devices whose cards are read
    :param slots: the MIG instances whose profile is known, whose cards are read as well; slots of
        other MIG instances have ``mig`` for the profile
    """
    known = {(slot.parent, slot.number): slot for slot in slots}
    return {
        known.get((address, number)) or Slot(address, _UNKNOWN, number): frozenset(own)
        for address in set(map(device.function, (*with_nodes, *slots)))
        for number, own in nodes.nodes_by_instance(address, roots).items()
    }


def look(
    host: libvirt_host.Host,
    parts: Parts,
    before: Mapping[str, DomainDevices] = MappingProxyType({}),
) -> dict[str, DomainDevices]:
    """Return the devices of each domain, running or only defined, by the domain's uuid.

    :param before: the result of the last call: guests that run since then may still have devices
        open to which their nodes led then
    """
    guests: dict[str, DomainDevices] = {}
    for uuid, xml in _domains(host):
        guests[uuid] = guests.get(uuid, DomainDevices()).and_also(named_in(xml, parts))
    return {uuid: item.since(before.get(uuid)) for uuid, item in guests.items()}


def note_reached(host: libvirt_host.Host, reached: Mapping[str, frozenset[Device]]) -> None:
    """Write into the metadata of running domains which devices they reach.

    A later service reads them from there, even if the guest's nodes lead to other devices by then.
    libvirt drops the metadata when the guest ends.

    :param reached: the ``reached`` of :class:`DomainDevices`, by the domain's uuid
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
                    "Failed to record in its domain which GPUs of others the guest %s reaches, "
                    "will retry in the next period: %s",
                    guest.uuid,
                    error,
                )


def stop(host: libvirt_host.Host, uuids: Collection[str]) -> dict[str, str | None]:
    """Power off running guests, which Nova then takes for guests that ended by themselves.

    :returns: by uuid, libvirt's error if the guest still runs, ``None`` if it was powered off
    """
    errors: dict[str, str] = {}
    with _unreadable():
        guests = [guest for guest in host.list_guests(only_running=True) if guest.uuid in uuids]
    for guest in guests:
        try:
            guest.poweroff()
        except libvirt.libvirtError as error:
            errors[guest.uuid] = str(error)
    still_running = frozenset(errors)
    if errors:
        # A guest may have ended although libvirt's answer was lost.
        with contextlib.suppress(exception.DomainsUnreadable):
            still_running = running(host)
    return {
        guest.uuid: errors.get(guest.uuid) if guest.uuid in still_running else None
        for guest in guests
    }


def running(host: libvirt_host.Host) -> frozenset[str]:
    """Return the uuids of the running domains."""
    with _unreadable():
        return frozenset(guest.uuid for guest in host.list_guests(only_running=True))


def mount_sources(host: libvirt_host.Host) -> frozenset[str]:
    """Return the host's paths that domains, running or not, mount into their containers."""
    return frozenset(
        source.get("dir", "")
        for _, xml in _domains(host)
        for source in _parsed(xml).iterfind("devices/filesystem/source[@dir]")
    )


def device_nodes(host: libvirt_host.Host) -> frozenset[str]:
    """Return the paths of all device nodes and bind mounts of domains, running or not."""
    return frozenset(node for _, xml in _domains(host) for node in _nodes(_parsed(xml)))


def hostdevs(
    host: libvirt_host.Host,
) -> dict[str, tuple[frozenset[PciAddress], frozenset[str], frozenset[Slot]]]:
    """Return what each domain names: PCI functions, uuids of mediated devices, nova-gpu's slots."""
    nothing = frozenset[PciAddress](), frozenset[str](), frozenset[Slot]()
    devices: dict[str, tuple[frozenset[PciAddress], frozenset[str], frozenset[Slot]]] = {}
    for uuid, xml in _domains(host):
        domain, before = _parsed(xml), devices.get(uuid, nothing)
        devices[uuid] = (
            before[0] | _all_functions(domain),
            before[1] | _mediated(domain),
            before[2] | device.slots(_metadata(domain) or ()),
        )
    return devices


def running_nodes(host: libvirt_host.Host) -> list[tuple[frozenset[Device], frozenset[str]]]:
    """Return the devices and the nodes' paths of each running container with our metadata."""
    with _unreadable():
        xmls = [guest.get_xml_desc() for guest in host.list_guests(only_running=True)]
    nodes_by_guest = (
        (_metadata(domain), frozenset(_made(domain))) for domain in map(_parsed, xmls)
    )
    return [(own, nodes) for own, nodes in nodes_by_guest if own and nodes]


def _domains(host: libvirt_host.Host) -> list[tuple[str, str]]:
    """Return the uuid and the XML of every domain.

    A running domain that is not Nova's is returned twice, also with the XML of its next start: it
    may name another card, and libvirt's LXC driver would start it even if the card is in use.
    """
    xmls: list[tuple[str, str]] = []
    with _unreadable():
        for guest in host.list_guests(only_running=False):
            try:
                own = [guest.get_xml_desc()]
                if _NOVAS not in own[0] and _runs(_parsed(own[0])):
                    own.append(guest.get_xml_desc(dump_inactive=True))
            except libvirt.libvirtError as error:
                if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                    raise
                continue  # gone since it was listed
            xmls += ((guest.uuid, xml) for xml in own)
    return xmls


@contextlib.contextmanager
def _unreadable() -> Iterator[None]:
    """Raise DomainsUnreadable in place of libvirt's errors, and of Nova's about libvirt."""
    try:
        yield
    except libvirt.libvirtError as error:
        raise exception.DomainsUnreadable(str(error)) from error
    except novas.raised("HypervisorUnavailable") as error:
        # Nova raises this if it cannot reach libvirt; its context is libvirt's own error.
        raise exception.DomainsUnreadable(str(error.__context__ or error)) from error


def gpus_in(xml: str, parts: Parts) -> frozenset[Device]:
    """Return the devices that one domain's XML names, and those that its running guest reaches."""
    return named_in(xml, parts).every


def named_in(xml: str, parts: Parts) -> DomainDevices:
    """Return the devices of one domain, from the metadata and the devices in its XML.

    The device nodes of a shut-off container with metadata are ignored: their numbers may be another
    card's by now, and it gets new nodes when it starts.

    A running container can open the devices that its nodes lead to now, whatever its metadata
    names. A node that is only bind-mounted opens nothing: libvirt's device cgroup allows the nodes
    that libvirt made (virLXCCgroupSetupDeviceACL).

    PCI addresses always count: an operator may have added one, or copied the domain. A domain with
    one function of a card has the whole card, but a virtual function that the metadata names as a
    vGPU is only that vGPU. Stock Nova's domains have no metadata: there the vGPUs of the guest are
    those in *parts* that it names. Metadata that is no address, and devices that are no GPUs, are
    ignored.
    """
    domain = _parsed(xml)
    ours = _metadata(domain)
    own_vgpus = _vgpus(domain, parts.vgpus_by_guest) if ours is None else device.slots(ours)
    vgpus = {slot.parent for slot in own_vgpus}
    devices: list[Device | None] = [
        parts.card_by_function.get(function)
        for hostdev in domain.iterfind("devices/hostdev")
        for function in _functions(hostdev)
        if function not in vgpus
    ]
    functions = frozenset(dev for dev in devices if dev)
    own = functions | (ours or own_vgpus)
    runs = _runs(domain)
    if ours is not None and not runs:
        return DomainDevices(own)
    known = frozenset(map(parts.known, _nodes(domain) if ours is None else _made(domain)))
    nodes = frozenset(card for card in map(parts.card_by_node.get, known) if card)
    addresses = functions if domain.get("type") == "lxc" else own
    opened = addresses | parts.opened_by(known) if runs else frozenset[Device]()
    led = nodes if runs else frozenset[Device]()
    run, cells = domain.get("id"), _cells(domain) if runs else frozenset[int]()
    if ours is None:
        return DomainDevices(own | nodes, frozenset(), opened, led, run, cells)
    now = DomainDevices(own, nodes - own, opened, led, run, cells)
    return now.with_earlier(_metadata(domain, _REACHED) or frozenset())


def renamed(xml: str, gone: Collection[Device], new: Iterable[Device]) -> str:
    """Return a domain's XML with *new* in place of *gone* in its metadata, for a live migration."""
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
    """Return a domain's XML without *devices*, in its metadata, hostdevs and mounts.

    :param mdevs: the uuids of the mediated devices among *devices*
    """
    domain = _parsed(xml)
    named = {str(dev) for dev in devices}
    for element in domain.findall(f"metadata/{{{NAMESPACE}}}gpus/*"):
        if element.get("address") in named:
            _remove(element)
    functions = {slot.parent for slot in device.slots(devices)}
    leading = _leading_to(devices, {parts.known(node) for node in _nodes(domain)}, parts)
    for hostdev in domain.findall("devices/hostdev"):
        nodes = [char.text or "" for char in hostdev.iterfind("source/char")]
        of_cards = [
            parts.card_by_function.get(function) in devices or function in functions
            for function in _functions(hostdev)
        ]
        is_made = any(
            address.get("uuid") in mdevs for address in hostdev.iterfind("source/address")
        )
        if any(of_cards) or is_made or any(parts.known(node) in leading for node in nodes):
            _remove(hostdev)
    for source in domain.findall("devices/filesystem/source[@dir]"):
        filesystem = source.getparent()
        if filesystem is not None and parts.known(source.get("dir", "")) in leading:
            _remove(filesystem)
    return str(etree.tostring(domain, encoding="unicode"))


def _leading_to(devices: Collection[Device], known: Set[str], parts: Parts) -> Set[str]:
    """Return the nodes that lead to *devices*, but for those that a kept MIG instance needs.

    They include the node of the card of a MIG instance, even if the card is no longer divided.
    """
    slots = device.slots(devices)
    own = {*devices, *(slot.parent for slot in slots)}
    leading = {node for node, dev in parts.card_by_node.items() if dev in own}
    leading = leading.union(*(parts.nodes_by_instance.get(slot, ()) for slot in slots))
    others = device.slots(parts.opened_by(known)) - slots
    return leading.difference(*(parts.nodes_by_instance[slot] for slot in others))


def _remove(element: etree._Element) -> None:
    parent = element.getparent()
    if parent is not None:
        parent.remove(element)


def _parsed(xml: str) -> etree._Element:
    try:
        return etree.fromstring(xml.encode())
    except (etree.XMLSyntaxError, ValueError) as error:
        raise exception.DomainsUnreadable(f"a domain's XML cannot be parsed: {error}") from error


def _runs(domain: etree._Element) -> bool:
    """Return whether the domain runs: only then it has an id (libvirt's formatdomain.html)."""
    return domain.get("id") is not None


def _cells(domain: etree._Element) -> frozenset[int]:
    """Return the NUMA nodes of the host that the memory of the guest's cells must be on."""
    nodes: set[int] = set()
    for memory in domain.iterfind("numatune/memnode"):
        # Those that only prefer a node are nova-gpu's own, in a guest to which Nova gives no cells.
        if memory.get("mode") != "preferred":
            for part in memory.get("nodeset", "").split(","):
                first, _, last = part.partition("-")
                if first.isdecimal() and (last or first).isdecimal():
                    nodes.update(range(int(first), int(last or first) + 1))
    return frozenset(nodes)


def _metadata(domain: etree._Element, namespace: str = NAMESPACE) -> frozenset[Device] | None:
    ours = domain.find(f"metadata/{{{namespace}}}gpus")
    if ours is not None:
        with contextlib.suppress(exception.InvalidValue):
            gpus = ours.iterchildren(tag=etree.Element)  # without comments
            return frozenset(device.parse(gpu.get("address", "")) for gpu in gpus)
    return None


def _vgpus(
    domain: etree._Element, vgpus_by_guest: Mapping[str, Collection[Slot]]
) -> frozenset[Slot]:
    """Return those of the guest's vGPUs that its domain names as functions or mediated devices."""
    uuid = domain.findtext("uuid") or ""
    if not (vgpus := vgpus_by_guest.get(uuid)):
        return frozenset()
    functions, mediated = _all_functions(domain), _mediated(domain)
    return frozenset(
        slot for slot in vgpus if slot.parent in functions or device_uuid(uuid, slot) in mediated
    )


def _all_functions(domain: etree._Element) -> frozenset[PciAddress]:
    hostdevs = domain.iterfind("devices/hostdev")
    return frozenset(function for hostdev in hostdevs for function in _functions(hostdev))


def _mediated(domain: etree._Element) -> frozenset[str]:
    """Return the uuids of the mediated devices that the domain names."""
    return frozenset(
        address.get("uuid", "").lower()
        for address in domain.iterfind("devices/hostdev[@type='mdev']/source/address")
    )


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
    """Yield the paths of the device nodes that libvirt makes in a container and lets it open."""
    for char in domain.iterfind("devices/hostdev[@type='misc']/source/char"):
        yield char.text or ""
