# SPDX-License-Identifier: Apache-2.0
"""The GPUs of a guest in its domain's metadata, as :mod:`nova_gpu.virt.usage.domains` reads
them.
"""

from __future__ import annotations

from lxml import etree
from nova.virt.libvirt import config as vconfig

from nova_gpu.core.device import Device
from nova_gpu.virt.usage import domains


class GuestMetaGPUs(vconfig.LibvirtConfigObject):  # type: ignore[misc]
    """Which GPUs a guest has, in its metadata.

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
