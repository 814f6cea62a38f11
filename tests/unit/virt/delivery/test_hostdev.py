# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fixtures
from nova import objects
from nova.virt.libvirt import config as vconfig
from oslotest import base

from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host.roots import Roots
from nova_gpu.virt.delivery import mediated_device
from nova_gpu.virt.delivery.delivery import Operation
from nova_gpu.virt.fabric import fabric
from tests.fixtures import cards

UUID = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
SLOTS = [Slot.parse(f"0000:5e:00.0/nvidia-63/{number}") for number in (0, 1)]


class HostdevPartsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        objects.register_all()
        self.way = mediated_device.MediatedDevices(Roots(), fabric.Fabric(Roots(), None))
        self.asked: list[tuple[str, ...]] = []
        for verb in ("make", "remove"):
            self.useFixture(
                fixtures.MonkeyPatch(
                    f"nova_gpu.privsep.vgpu.{verb}",
                    lambda *args, verb=verb: self.asked.append((verb, *args)),
                )
            )

    def clean(self, slot: Slot) -> None:
        self.fail("there is nothing to be cleaned")

    def test_made_and_removed_as_root(self) -> None:
        self.way.make(SLOTS[0], UUID)
        self.way.give_back(SLOTS[0], UUID, self.clean)
        slot = str(SLOTS[0])
        self.assertEqual([("make", slot, UUID), ("remove", slot, UUID)], self.asked)

    def test_whose_it_was_nobody_knows(self) -> None:
        self.way.give_back(SLOTS[0], None, self.clean)
        self.assertEqual([], self.asked)

    def test_rendered(self) -> None:
        guest = vconfig.LibvirtConfigGuest()
        given = [cards.card("0000:3b:00.0"), *SLOTS]
        self.way.render(objects.Instance(uuid=UUID), guest, given)
        self.assertEqual(2, len(guest.devices))
        (meta,) = guest.metadata
        self.assertEqual(tuple(SLOTS), meta.addresses)

    def test_refused(self) -> None:
        self.assertIs(self.way, self.way.delivery)
        self.assertEqual({Operation.SUSPEND, Operation.SNAPSHOT}, self.way.refused.keys())
