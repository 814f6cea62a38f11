# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from nova import exception as nova_exception
from nova.virt.libvirt import config as vconfig

from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.virt.delivery import guest_config
from nova_gpu.virt.live_migration import migrate_data
from tests.fixtures.bases import moving
from tests.fixtures.bases.moving import CARD, THERE, slots
from tests.fixtures.compute import devices, resources
from tests.fixtures.histories import Domain


class MovesTest(moving.MovingTestCase):
    def test_recorded(self) -> None:
        """Whoever's they are, by type first, so that both sides of a move are in one order"""
        texts = [f"{CARD}/nvidia-64/0", f"{THERE}/nvidia-63/1", f"{CARD}/nvidia-63/1", CARD]
        found = migrate_data.recorded(resources(*((self.provider, each) for each in texts)))
        self.assertEqual([texts[2], texts[1], texts[0]], [str(each) for each in found])
        self.assertEqual([], migrate_data.recorded(None))

    def test_pairs(self) -> None:
        instance = self.moving(slots(CARD, 3, 1), slots(THERE, 0, 2), here="old")
        old, new = (list(map(Slot.parse, slots(*each))) for each in ((CARD, 1, 3), (THERE, 0, 2)))
        self.assertEqual(list(zip(old, new, strict=True)), migrate_data.pairs(instance))
        self.assertTrue(self.moves.are_moved(self.moving(slots(CARD, 0), [], here="old")))
        self.assertFalse(self.moves.are_moved(self.plain))
        found = self.compute.gpus.assigned.parts.held(self.has(*slots(CARD, 0)).resources)
        said = {Slot.parse(f"{CARD}/nvidia-63/0"): moving.WORDS}
        self.assertEqual(said, self.moves.described(found))

    def test_stays(self) -> None:
        """What its domain names from now on, which this service need not have seen"""
        instance = self.moving(slots(THERE, 0), slots(CARD, 2), here="new")
        guest = vconfig.LibvirtConfigGuest()
        guest.name = guest.uuid = instance.uuid
        guest.virt_type, guest.os_type = "kvm", "hvm"
        slot = Slot.parse(slots(CARD, 2)[0])
        device = guest_config.GuestMediatedDevice(instance.uuid, slot)
        guest_config.add_vgpus(guest, {slot: device})
        self.compute.libvirt.domains[instance.uuid] = Domain(instance.uuid, guest.to_xml())
        self.moves.stays(instance)
        self.assertEqual(devices(slots(CARD, 2)), self.ledger.now.kept_by(instance.uuid))
        self.assertEqual(devices(slots(CARD, 2)), self.ledger.now.had_by(instance.uuid))
        self.compute.libvirt.domains.clear()
        self.compute.gpus.periods.refresh()
        self.assertEqual(frozenset(), self.ledger.now.kept_by(instance.uuid))
        self.moves.stays(self.plain)
        self.assertEqual(frozenset(), self.ledger.now.kept_by(self.plain.uuid))

    def test_too_old(self) -> None:
        instance = self.has(*slots(CARD, 0))
        self.moves.refuse_too_old(instance, is_able=True)
        self.moves.refuse_too_old(self.plain, is_able=False)
        said = "host host1 cannot move a running guest with vGPUs, which takes libvirt"
        with self.assertRaisesRegex(nova_exception.MigrationPreCheckError, said):
            self.moves.refuse_too_old(instance, is_able=False)
