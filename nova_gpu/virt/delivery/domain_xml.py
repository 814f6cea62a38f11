# SPDX-License-Identifier: Apache-2.0
"""A guest's GPUs as elements of libvirt's domain XML.

They are device nodes and mounts for containers, vGPUs and whole cards for KVM guests (each card
behind a PCI Express port of its own), and the metadata that names a guest's GPUs.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from lxml import etree
from nova import objects
from nova.virt.libvirt import blockinfo
from nova.virt.libvirt import config as vconfig
from nova.virt.libvirt import host as libvirt_host
from nova.virt.libvirt import utils as libvirt_utils
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import boundary
from nova_gpu.core.container import GuestContents
from nova_gpu.core.device import Device
from nova_gpu.core.guest import machine_types
from nova_gpu.core.guest import tree as trees
from nova_gpu.core.guest.address_space import Setting
from nova_gpu.core.guest.tree import Tree
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.host.roots import Roots
from nova_gpu.virt.delivery import guest_address_space, guest_tree
from nova_gpu.virt.usage import domains

LOG = logging.getLogger(__name__)


class GuestMetaGPUs(vconfig.LibvirtConfigObject):  # type: ignore[misc]
    """The metadata element of a domain that names its GPUs, by address or slot.

    :mod:`nova_gpu.virt.usage.domains` reads it. Other elements do not identify the GPUs for long.
    The driver assigns the numbers of a container's device nodes, and may assign them to another
    card later, which a running container can then open. The UUID of a mediated device means nothing
    after a host boot, which removes the device.
    """

    def __init__(self, addresses: tuple[Device, ...]) -> None:
        super().__init__(root_name="gpus", ns_prefix="gpu", ns_uri=domains.NAMESPACE)
        self.addresses = addresses

    def format_dom(self) -> etree._Element:
        element: etree._Element = super().format_dom()
        for address in self.addresses:
            etree.SubElement(element, f"{{{domains.NAMESPACE}}}gpu", address=str(address))
        return element


class GuestHostdevMisc(vconfig.LibvirtConfigGuestHostdev):  # type: ignore[misc]
    """The hostdev element of a device node, which libvirt makes in the container.

    libvirt also allows the node in the container's device cgroup.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.mode = "capabilities"
        self.type = "misc"
        self.path = path

    def format_dom(self) -> etree._Element:
        element: etree._Element = super().format_dom()
        del element.attrib["managed"]  # for PCI devices only
        etree.SubElement(etree.SubElement(element, "source"), "char").text = self.path
        return element


class GuestMount(vconfig.LibvirtConfigGuestFilesys):  # type: ignore[misc]
    """The element of a bind mount: the container sees *source*, a path of the host, at *target*."""

    def __init__(self, source: str, target: str, readonly: bool) -> None:
        super().__init__()
        self.source_dir = source
        self.target_dir = target
        self.readonly = readonly

    def format_dom(self) -> etree._Element:
        element: etree._Element = super().format_dom()
        if self.readonly:
            etree.SubElement(element, "readonly")
        return element


def isolate(guest: vconfig.LibvirtConfigGuest) -> None:
    """Give a container a network namespace; without a NIC it would otherwise share the host's."""
    guest.features.append(vconfig.LibvirtConfigGuestFeature("privnet"))


def add_nodes(
    guest: vconfig.LibvirtConfigGuest, addresses: tuple[Device, ...], contents: GuestContents
) -> None:
    """Add the metadata, device nodes, mounts and environment of a container with GPUs.

    Each node is added twice: as a device, and as a bind mount of the host's node over it. The node
    that libvirt makes has mode 0700; the mount lets the guest's ordinary users open it. The root
    filesystem must be in *guest* already, because Nova takes the first filesystem for the root.
    """
    guest.metadata.append(GuestMetaGPUs(addresses))
    for node in contents.nodes:
        guest.add_device(GuestHostdevMisc(node))
        guest.add_device(GuestMount(node, node, readonly=False))
    for mount in contents.mounts:
        guest.add_device(GuestMount(mount.source, mount.target, readonly=True))
    guest.os_init_env.update(dict(contents.env))


class _IDMap(tuple[int, int, int]):
    """An id map that is both Nova's configuration object and a tuple of three numbers.

    Nova 32 to 34 pass these objects to nova.privsep.idmapshift, which unpacks three numbers, and
    privsep sends only plain types to its daemon. So with Nova's own class no container with id maps
    starts. The tuple passes through privsep, and the configuration class still renders the XML.
    """

    def __new__(cls, plain: vconfig.LibvirtConfigGuestIDMap) -> _IDMap:
        return super().__new__(cls, (plain.start, plain.target, plain.count))

    def __init__(self, plain: vconfig.LibvirtConfigGuestIDMap) -> None:
        super().__init__()
        vars(self).update(start=plain.start, target=plain.target, count=plain.count)


class _UIDMap(_IDMap, vconfig.LibvirtConfigGuestUIDMap):  # type: ignore[misc]
    pass


class _GIDMap(_IDMap, vconfig.LibvirtConfigGuestGIDMap):  # type: ignore[misc]
    pass


def id_map(plain: vconfig.LibvirtConfigGuestIDMap) -> vconfig.LibvirtConfigGuestIDMap:
    """Return a copy of Nova's id map *plain* that privsep can send to its daemon."""
    return _UIDMap(plain) if isinstance(plain, vconfig.LibvirtConfigGuestUIDMap) else _GIDMap(plain)


class GuestVirtualFunction(vconfig.LibvirtConfigGuestHostdevPCI):  # type: ignore[misc]
    """The hostdev element of a virtual function.

    :param managed: whether libvirt binds the function to vfio-pci while the domain runs; otherwise
        the function keeps the driver that it has on the host
    """

    def __init__(self, address: PciAddress, *, managed: bool) -> None:
        super().__init__()
        self.managed = "yes" if managed else "no"
        self.domain, self.bus = f"{address.domain:04x}", f"{address.bus:02x}"
        self.slot, self.function = f"{address.slot:02x}", f"{address.function:x}"


class GuestMediatedDevice(vconfig.LibvirtConfigGuestHostdevMDEV):  # type: ignore[misc]
    def __init__(self, instance_uuid: str, slot: Slot) -> None:
        super().__init__()
        self.uuid = device_uuid(instance_uuid, slot)


def add_vgpus(
    guest: vconfig.LibvirtConfigGuest, devices: Mapping[Slot, vconfig.LibvirtConfigGuestHostdev]
) -> None:
    """Add the hostdevs of vGPUs after Nova's devices; libvirt assigns their PCI addresses.

    Also add their slots to the guest's metadata, next to its whole cards: neither the UUID of a
    mediated device nor the address of a function identifies the slot.
    """
    named = [metadata for metadata in guest.metadata if isinstance(metadata, GuestMetaGPUs)]
    if not named:
        named = [GuestMetaGPUs(())]
        guest.metadata += named
    named[0].addresses += tuple(devices)
    for device in devices.values():
        guest.add_device(device)


# The XML namespace of elements for QEMU alone, by libvirt's docs/drvqemu.rst
_QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"


class GuestFunction(vconfig.LibvirtConfigGuestHostdevPCI):  # type: ignore[misc]
    """The hostdev element of one function of a card, in the only slot behind a port.

    The function keeps its number.

    :param port: the index of the port's controller, which is libvirt's bus number behind the port
    :param is_first_of_many: whether to tell the guest that the slot has more functions
    :param alias: libvirt's name of the device, which :class:`GuestWithCliques` refers to
    :param clique: the number of the card's GPUDirect clique, which :class:`GuestWithCliques` writes
        into the domain; ``None`` without one
    """

    def __init__(
        self,
        address: PciAddress,
        port: int,
        *,
        is_first_of_many: bool,
        option_rom: bool,
        alias: str | None = None,
        clique: int | None = None,
    ) -> None:
        super().__init__()
        self.domain, self.bus = f"{address.domain:04x}", f"{address.bus:02x}"
        self.slot, self.function = f"{address.slot:02x}", f"{address.function:x}"
        self.port = port
        self.is_first_of_many = is_first_of_many
        self.option_rom = option_rom
        self.alias, self.clique = alias, clique

    def format_dom(self) -> etree._Element:
        element: etree._Element = super().format_dom()
        place = {"type": "pci", "domain": "0x0000", "bus": f"0x{self.port:02x}", "slot": "0x00"}
        place["function"] = f"0x{self.function}"
        if self.is_first_of_many:
            place["multifunction"] = "on"
        etree.SubElement(element, "address", place)
        if not self.option_rom:
            etree.SubElement(element, "rom", bar="off")
        if self.alias is not None:
            etree.SubElement(element, "alias", name=self.alias)
        return element


class GuestWithCliques(vconfig.LibvirtConfigGuest):  # type: ignore[misc]
    """A guest whose cards show the number of their GPUDirect clique to NVIDIA's driver.

    The clique is a property of QEMU's device that libvirt has no element for. So the domain
    overrides the property of the device with the card's alias; libvirt therefore marks the domain
    as tainted.

    :param guest: Nova's configuration, whose fields this object takes over
    """

    def __init__(self, guest: vconfig.LibvirtConfigGuest) -> None:
        super().__init__()
        self.__dict__.update(vars(guest))

    def format_dom(self) -> etree._Element:
        element: etree._Element = super().format_dom()
        override = etree.SubElement(element, f"{{{_QEMU}}}override", nsmap={"qemu": _QEMU})
        for function in _with_clique(self):
            device = etree.SubElement(override, f"{{{_QEMU}}}device", alias=str(function.alias))
            frontend = etree.SubElement(device, f"{{{_QEMU}}}frontend")
            value = str(function.clique)
            attributes = {"name": "x-nv-gpudirect-clique", "type": "unsigned", "value": value}
            etree.SubElement(frontend, f"{{{_QEMU}}}property", attributes)
        return element


def with_cliques(guest: vconfig.LibvirtConfigGuest) -> vconfig.LibvirtConfigGuest:
    """Return *guest*, as a :class:`GuestWithCliques` if its cards have clique numbers."""
    return GuestWithCliques(guest) if _with_clique(guest) else guest


def _with_clique(guest: vconfig.LibvirtConfigGuest) -> list[GuestFunction]:
    functions = (device for device in guest.devices if isinstance(device, GuestFunction))
    return [function for function in functions if function.clique is not None]


def machine_type(instance: objects.Instance) -> str | None:
    """Return the machine type, such as q35, by image or host options; ``None`` if not stated."""
    stated: str | None = libvirt_utils.get_machine_type(instance.image_meta)
    return stated


def defined_machine_type(host: libvirt_host.Host, instance: objects.Instance) -> str | None:
    """Return the machine type of the instance's KVM domain; ``None`` if libvirt tells none."""
    try:
        with boundary.crossed():
            xml = host.get_guest(instance).get_xml_desc(dump_inactive=True)
            os_type = etree.fromstring(xml.encode()).find("os/type")
    except boundary.Failure:
        return None
    return None if os_type is None else os_type.get("machine")


def with_machine_type(image: objects.ImageMeta, stated: str | None) -> objects.ImageMeta:
    """Return a copy of *image* that states the machine type, or *image* if that is ``None``."""
    if stated is None:
        return image
    own = image.obj_clone()
    own.properties.hw_machine_type = stated
    return own


def add_cards(
    guest: vconfig.LibvirtConfigGuest,
    cards: Sequence[GPU],
    *,
    option_rom: bool,
    tree: Tree | None = None,
    cliques: Mapping[PciAddress, int] = MappingProxyType({}),
) -> None:
    """Add *cards* before Nova's devices, each behind a PCI Express port of its own.

    libvirt itself makes the ports that addresses refer to, and one more, so that a device can be
    attached later. If the domain defines ports, libvirt makes no spare one. If Nova defines ports
    (``[libvirt]num_pcie_ports``), this function also defines those of the cards: libvirt numbers
    controllers without an index from the first free number on, so the cards would otherwise occupy
    Nova's ports.

    None of the cards is the primary display: that is Nova's video device, if the guest has one.

    :param tree: the tree whose ports the cards use; without one the ports are on the guest's root
    :param cliques: the number of each card's GPUDirect clique, by address; others have none
    :raises GuestUnfit: for a machine type without PCI Express
    """
    machine_types.refuse_without_pci_express(guest.os_mach_type)
    guest.metadata.append(GuestMetaGPUs(tuple(card.address for card in cards)))
    behind = trees.flat(cards) if tree is None else tree.behind
    aliases = {address: f"ua-gpu-{number}" for number, address in enumerate(cliques)}
    functions = [
        GuestFunction(
            address,
            behind[card.address],
            is_first_of_many=address == card.functions[0] and len(card.functions) > 1,
            option_rom=option_rom,
            alias=aliases.get(address),
            clique=cliques.get(address),
        )
        for card in cards
        for address in card.functions
    ]
    ports: list[vconfig.LibvirtConfigGuestDevice] = []
    if tree is not None:
        ports = list(guest_tree.controllers(guest, tree))
    elif guest_tree.has_ports(guest):
        ports = list(guest_tree.ports(1, len(cards)))
    guest.devices[:0] = ports + functions


# Address space for the cards' BARs

# The CPU modes that libvirt builds from a model and features, and the name of the feature for pages
# of 1 GiB
_NAMED = ("custom", "host-model")
_GIB_PAGES = "pdpe1gb"


class GuestPCIeRoot(vconfig.LibvirtConfigGuestPCIeRootController):  # type: ignore[misc]
    """The PCI Express root controller of a q35 guest, with a 64-bit PCI hole."""

    def __init__(self, hole: int) -> None:
        super().__init__()
        self.index = 0
        self.hole = hole

    def format_dom(self) -> etree._Element:
        element: etree._Element = super().format_dom()
        etree.SubElement(element, "pcihole64", unit="KiB").text = str(self.hole >> 10)
        return element


def has_uefi(guest: vconfig.LibvirtConfigGuest) -> bool:
    return bool(guest.os_firmware == "efi" or guest.os_loader_type == "pflash")


def give_room(guest: vconfig.LibvirtConfigGuest, setting: Setting) -> None:
    """Write the address space that the guest's cards need into its configuration.

    Change nothing if QEMU's defaults suffice, or the machine type is not q35.
    """
    if setting.hole is None or "q35" not in guest.os_mach_type:
        return
    _set_bits(guest, setting.bits)
    if setting.gib_pages:
        _give_gib_pages(guest)
    roots_of_tree = (
        device
        for device in guest.devices
        if isinstance(device, vconfig.LibvirtConfigGuestPCIeRootController)
    )
    for plain in list(roots_of_tree):
        guest.devices.remove(plain)
    guest.devices.insert(0, GuestPCIeRoot(setting.hole))


def _set_bits(guest: vconfig.LibvirtConfigGuest, bits: int | None) -> None:
    """Set the number of the guest's physical address bits, unless flavor or image set it.

    Without *bits*, state explicitly that the guest has the host's bits if its CPU mode is the
    host's: upstream QEMU does so by default, but not every distribution's QEMU.
    """
    if guest.cpu is None or guest.cpu.maxphysaddr is not None:
        return
    element = vconfig.LibvirtConfigGuestCPUMaxPhysAddr()
    if bits is not None:
        element.mode, element.bits = "emulate", bits
    elif guest.cpu.mode in guest_address_space.AS_THE_HOST:
        element.mode = "passthrough"
    else:
        return
    guest.cpu.maxphysaddr = element


class GuestLimitedBits(vconfig.LibvirtConfigGuestCPUMaxPhysAddr):  # type: ignore[misc]
    """The address bits of the host's processor, up to a limit."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.mode = "passthrough"
        self.limit = limit

    def format_dom(self) -> etree._Element:
        element: etree._Element = super().format_dom()
        element.set("limit", str(self.limit))
        return element


def limit_bits(
    guest: vconfig.LibvirtConfigGuest, roots: Roots, libvirt_version: int | None
) -> None:
    """Give a guest with a PCI function no more address bits than the host's IOMMU can map.

    Firmware puts BARs at the end of the address space. Change nothing if the guest does not have
    the bits of the host's processor. With an older libvirt, log that it has too many.
    """
    limit = guest_address_space.limit(roots)
    if limit is None or guest.cpu is None:
        return
    bits = guest.cpu.maxphysaddr
    is_hosts = guest.cpu.mode in guest_address_space.AS_THE_HOST
    if not (is_hosts if bits is None else bits.mode == "passthrough"):
        return
    if guest_address_space.can_limit(libvirt_version):
        guest.cpu.maxphysaddr = GuestLimitedBits(limit)
    else:
        text = guest_address_space.unlimited(roots, libvirt_version)
        LOG.warning("Instance %s: %s", guest.uuid, text)


def _give_gib_pages(guest: vconfig.LibvirtConfigGuest) -> None:
    """Add the CPU feature for memory pages of 1 GiB, which some of QEMU's CPU models lack."""
    if guest.cpu is None or guest.cpu.mode not in _NAMED:
        return
    if all(feature.name != _GIB_PAGES for feature in guest.cpu.features):
        guest.cpu.add_feature(vconfig.LibvirtConfigGuestCPUFeature(_GIB_PAGES))


def define_again(
    nova: Any, context: Any, instance: objects.Instance, *args: Any, **kwargs: Any
) -> None:
    """Write a new definition of the instance's domain, with the GPUs that the instance has now.

    Called before a rescue, because the unrescue starts the domain by this definition.

    :param nova: nova.virt.libvirt.driver.LibvirtDriver
    :param args: the arguments of Nova's ``rescue``, with ``share_info`` from Nova 32 on
    """
    arguments = inspect.signature(nova.rescue).bind(context, instance, *args, **kwargs).arguments
    image, block_devices = instance.image_meta, arguments["block_device_info"]
    disks = blockinfo.get_disk_info(CONF.libvirt.virt_type, instance, image, block_devices)
    others = {name: arguments[name] for name in arguments.keys() & {"share_info"}}
    if find := getattr(nova, "_get_existing_guest_config", None):  # from Nova 34 on
        others["old_guest"] = find(instance)  # else the firmware that libvirt chose is lost
    xml = nova._get_guest_xml(
        context,
        instance,
        arguments["network_info"],
        disks,
        image,
        block_device_info=block_devices,
        **others,
    )
    nova._host.write_instance_config(xml)
