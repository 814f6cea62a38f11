# SPDX-License-Identifier: Apache-2.0
"""Mediated devices of a generated host."""

from __future__ import annotations

import types
from typing import Any

import fixtures
from lxml import etree
from nova import objects
from nova.virt.libvirt import config as vconfig
from oslotest import base

from nova_gpu.core.flavor import request
from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.virt.delivery import mediated_device
from tests.fixtures import cards, hosts, vgpu

CARD = "0000:3b:00.0"
UUID = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
OTHER = "0b9c8d7e-1111-4222-8333-444455556666"
SLOT, NEXT = (Slot.parse(f"{CARD}/nvidia-64/{number}") for number in (0, 1))


class MediatedDevicesTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        self.host.add_gpu(CARD, "10de", "1bb3")
        vgpu.add_types(self.host, CARD, vgpu.TESLA_P4)
        self.way = mediated_device.MediatedDevices(self.host.roots)
        self.calls: list[str] = []
        for verb in ("make", "remove"):
            self.useFixture(
                fixtures.MonkeyPatch(f"nova_gpu.privsep.vgpu.{verb}", self._stand_in(verb))
            )

    def _stand_in(self, verb: str) -> object:
        return lambda slot, uuid: self.calls.append(f"{verb} {slot} {uuid}")

    def test_there_for_its_instance_alone(self) -> None:
        self.assertFalse(self.way.is_there(SLOT, UUID, None))
        vgpu.make(self.host, CARD, "nvidia-64", device_uuid(UUID, SLOT))
        self.assertTrue(self.way.is_there(SLOT, UUID, None))
        self.assertFalse(self.way.is_there(SLOT, OTHER, None))
        self.assertFalse(self.way.is_there(NEXT, UUID, None))

    def test_made_and_removed(self) -> None:
        self.way.prepare(SLOT, UUID)
        self.assertFalse(self.way.clean(SLOT))
        self.way.release(SLOT, UUID, self.fail)
        self.way.release(SLOT, None, self.fail)
        self.assertEqual([f"make {SLOT} {UUID}", f"remove {SLOT} {UUID}"], self.calls)

    def test_rendered_by_its_uuid(self) -> None:
        guest = vconfig.LibvirtConfigGuest()
        guest.name, guest.virt_type, guest.os_type = "instance-00000001", "kvm", "hvm"
        given = [cards.card("0000:5e:00.0"), SLOT, NEXT]
        self.way.render(objects.Instance(uuid=UUID), request.of({}), guest, given)
        found = etree.fromstring(guest.to_xml()).findall("devices/hostdev/source/address")
        uuids = [each.get("uuid") for each in found]
        self.assertEqual([device_uuid(UUID, each) for each in (SLOT, NEXT)], uuids)
        (meta,) = guest.metadata
        self.assertEqual((SLOT, NEXT), meta.addresses)

    def test_moved(self) -> None:
        data: Any = types.SimpleNamespace(target_mdevs={})
        self.way.moved(data, UUID, SLOT, NEXT)
        self.assertEqual({device_uuid(UUID, SLOT): device_uuid(UUID, NEXT)}, data.target_mdevs)
        self.assertIsNone(self.way.stateless(SLOT, is_running=True))
