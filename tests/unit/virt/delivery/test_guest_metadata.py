# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from nova.virt.libvirt import config as vconfig
from oslotest import base

from nova_gpu.core import device
from nova_gpu.virt.delivery import guest_metadata
from nova_gpu.virt.usage import domains

DEVICES = tuple(map(device.parse, ("0000:3b:00.0", "0000:5e:00.0/nvidia-63/1")))


class GuestMetadataTest(base.BaseTestCase):
    def xml(self, *devices: device.Device) -> str:
        guest = vconfig.LibvirtConfigGuest()
        guest.name, guest.virt_type, guest.os_type = "one", "kvm", "hvm"
        guest.metadata.append(guest_metadata.GuestMetaGPUs(devices))
        return str(guest.to_xml())

    def test_is_read_back(self) -> None:
        """Of a host that has none of them any more"""
        parts = domains.Parts({}, {}, {}, lambda _: None)
        self.assertEqual(frozenset(DEVICES), domains.gpus_in(self.xml(*DEVICES), parts))
        self.assertEqual(frozenset(), domains.gpus_in(self.xml(), parts))

    def test_format(self) -> None:
        """Domains of an earlier release are read, and those of this one by it."""
        xml = self.xml(*DEVICES)
        self.assertIn('xmlns:gpu="urn:nova-gpu:domain:1"', xml)
        for each in DEVICES:
            self.assertIn(f'<gpu:gpu address="{each}"/>', xml)
