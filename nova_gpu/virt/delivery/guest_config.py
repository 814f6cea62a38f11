# SPDX-License-Identifier: Apache-2.0
"""A guest's GPUs in libvirt's terms: nodes and mounts of containers, vGPUs, and the metadata."""

from __future__ import annotations

from collections.abc import Mapping

from lxml import etree
from nova.virt.libvirt import config as vconfig

from nova_gpu.core.contents import GuestContents
from nova_gpu.core.device import Device
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.virt.usage import domains


class GuestMetaGPUs(vconfig.LibvirtConfigObject):  # type: ignore[misc]
    """Which GPUs a guest has, in its metadata, as :mod:`nova_gpu.virt.usage.domains` reads it.

    The device nodes of a container do not say it for good: their numbers belong to the driver and
    may be another card's by now, which the container then reaches as long as it runs. Nor does the
    uuid of a mediated device, which is gone when the host has booted.
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
    """A device node: libvirt makes it in the guest and adds the device cgroup's rule."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.mode = "capabilities"
        self.type = "misc"
        self.path = path

    def format_dom(self) -> etree._Element:
        element: etree._Element = super().format_dom()
        del element.attrib["managed"]  # speaks of PCI devices only
        etree.SubElement(etree.SubElement(element, "source"), "char").text = self.path
        return element


class GuestMount(vconfig.LibvirtConfigGuestFilesys):  # type: ignore[misc]
    """A file, node or folder of the host that the guest sees at ``target``."""

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
    """A network namespace of its own: without it a container without a NIC shares the host's."""
    guest.features.append(vconfig.LibvirtConfigGuestFeature("privnet"))


def add_nodes(
    guest: vconfig.LibvirtConfigGuest, addresses: tuple[Device, ...], contents: GuestContents
) -> None:
    """Each node twice: libvirt's own node has mode 0700, the bind of the host's over it lets the
    guest's ordinary users in. The root filesystem must be in *guest* already: Nova takes the first
    one for it."""
    guest.metadata.append(GuestMetaGPUs(addresses))
    for node in contents.nodes:
        guest.add_device(GuestHostdevMisc(node))
        guest.add_device(GuestMount(node, node, readonly=False))
    for mount in contents.mounts:
        guest.add_device(GuestMount(mount.source, mount.target, readonly=True))
    guest.os_init_env.update(dict(contents.env))


class _IDMap(tuple[int, int, int]):
    """An id map as a tuple too.

    Nova 32 to 34 hand these objects to nova.privsep.idmapshift, which unpacks three numbers and
    cannot serialize anything but plain types on its way to the daemon: no container with id maps
    starts. What is a tuple goes through, and what is the config class still renders.
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
    """*plain* in a form that privsep can send as well."""
    return _UIDMap(plain) if isinstance(plain, vconfig.LibvirtConfigGuestUIDMap) else _GIDMap(plain)


class GuestVirtualFunction(vconfig.LibvirtConfigGuestHostdevPCI):  # type: ignore[misc]
    """:param managed: whether libvirt binds it to vfio-pci as long as the domain runs; else it
    stays with the driver that it has on the host
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
    guest: vconfig.LibvirtConfigGuest,
    devices: Mapping[Slot, vconfig.LibvirtConfigGuestHostdev],
) -> None:
    """Puts *devices* behind Nova's, where libvirt finds each a place.

    The uuid does not say which slot it is, nor does an address; the metadata does, beside whole
    cards of the guest.
    """
    named = [each for each in guest.metadata if isinstance(each, GuestMetaGPUs)]
    if not named:
        named = [GuestMetaGPUs(())]
        guest.metadata += named
    named[0].addresses += tuple(devices)
    for device in devices.values():
        guest.add_device(device)
