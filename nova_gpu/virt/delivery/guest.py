# SPDX-License-Identifier: Apache-2.0
"""A container's GPUs in libvirt's terms."""

from __future__ import annotations

from lxml import etree
from nova.virt.libvirt import config as vconfig

from nova_gpu.core.contents import GuestContents
from nova_gpu.core.device import Device
from nova_gpu.virt.delivery import guest_metadata


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


def add_gpus(
    guest: vconfig.LibvirtConfigGuest, addresses: tuple[Device, ...], contents: GuestContents
) -> None:
    """Each node twice: libvirt's own node has mode 0700, the bind of the host's over it lets the
    guest's ordinary users in. The root filesystem must be in *guest* already: Nova takes the first
    one for it."""
    guest.metadata.append(guest_metadata.GuestMetaGPUs(addresses))
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
