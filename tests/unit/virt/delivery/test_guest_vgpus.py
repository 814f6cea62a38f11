# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from lxml import etree
from nova.virt.libvirt import config as vconfig

from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.virt.delivery import guest_vgpus
from nova_gpu.virt.usage import domains

INSTANCE = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
MEDIATED = Slot.parse("0000:3b:00.0/nvidia-63/2")
FUNCTION = Slot.parse("0000:af:02.5/nvidia-1155/0")


class AddVGPUsTest(unittest.TestCase):
    def test_each_in_its_own_way(self) -> None:
        guest = vconfig.LibvirtConfigGuest()
        guest.name, guest.virt_type, guest.os_type = "instance-00000001", "kvm", "hvm"
        guest_vgpus.add_vgpus(
            guest,
            {
                MEDIATED: guest_vgpus.GuestMediatedDevice(INSTANCE, MEDIATED),
                FUNCTION: guest_vgpus.GuestVirtualFunction(FUNCTION.parent, managed=False),
            },
        )
        xml = guest.to_xml()
        mediated, function = etree.fromstring(xml).findall("devices/hostdev")
        self.assertEqual(
            {"mode": "subsystem", "type": "mdev", "model": "vfio-pci", "managed": "no"},
            dict(mediated.attrib),
        )
        (address,) = mediated.findall("source/address")
        self.assertEqual(device_uuid(INSTANCE, MEDIATED), address.get("uuid"))
        # Its driver is to stay, and libvirt is to find it a place.
        self.assertEqual(
            {"mode": "subsystem", "type": "pci", "managed": "no"}, dict(function.attrib)
        )
        (address,) = function
        (address,) = address
        self.assertEqual(
            {"domain": "0x0000", "bus": "0xaf", "slot": "0x02", "function": "0x5"},
            dict(address.attrib),
        )
        parts = domains.Parts({}, {FUNCTION.parent: FUNCTION.parent})
        self.assertEqual({MEDIATED, FUNCTION}, domains.gpus_in(xml, parts))

    def test_plain_function_is_libvirts_to_bind(self) -> None:
        guest = vconfig.LibvirtConfigGuest()
        guest.name, guest.virt_type, guest.os_type = "instance-00000001", "kvm", "hvm"
        slot = Slot.parse("0000:3b:00.1/vf/0")
        plain = guest_vgpus.GuestVirtualFunction(slot.parent, managed=True)
        guest_vgpus.add_vgpus(guest, {slot: plain})
        (function,) = etree.fromstring(guest.to_xml()).findall("devices/hostdev")
        self.assertEqual(("pci", "yes"), (function.get("type"), function.get("managed")))
