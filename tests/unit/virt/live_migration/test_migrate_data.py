# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

import fixtures
from nova import exception as nova_exception
from nova.virt.libvirt import config as vconfig
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.host.pci import discovery
from nova_gpu.virt.delivery import guest_config
from nova_gpu.virt.live_migration import migrate_data
from tests.fixtures import hosts
from tests.fixtures import nvml as machines
from tests.fixtures.compute import devices, resources
from tests.fixtures.histories import Domain
from tests.unit.virt.live_migration import moving
from tests.unit.virt.live_migration.moving import CARD, THERE, slots

WORDS = "nvidia-1155 of 10de:26b9, a virtual function with a type"


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

    def test_whose_vgpus_are_moved(self) -> None:
        self.assertTrue(self.moves.are_moved(self.moving(slots(CARD, 0), [], here="old")))
        self.assertFalse(self.moves.are_moved(self.plain))

    def test_described(self) -> None:
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


class MismatchTest(base.BaseTestCase):
    def test_alike(self) -> None:
        for has, gets in (
            (WORDS, WORDS),
            (f"{WORDS}; driver 550.54.16; ECC 1", f"{WORDS}; driver 550.54.16; ECC 1"),
            (WORDS, f"{WORDS}; driver 535.1; ECC 0"),  # of an older release
            (f"{WORDS}; driver 550.54.16", f"{WORDS}; ECC 0"),
        ):
            self.assertIsNone(migrate_data.not_alike(has, gets), (has, gets))

    def test_another_type(self) -> None:
        other = WORDS.replace("1155", "1156")
        said = migrate_data.not_alike(f"{WORDS}; ECC 1", f"{other}; ECC 1")
        self.assertEqual(f"the guest has {WORDS}, and would get {other}", said)
        self.assertIn("the guest has None", str(migrate_data.not_alike(None, WORDS)))

    def test_another_ecc_mode(self) -> None:
        said = migrate_data.not_alike(f"{WORDS}; driver 1.2; ECC 1", f"{WORDS}; driver 1.2; ECC 0")
        self.assertIn("has ECC on, and the one that it would get has it off", str(said))

    def test_another_version(self) -> None:
        said = migrate_data.not_alike(f"{WORDS}; driver 550.54.16", f"{WORDS}; driver 550.127.05")
        self.assertIn("is 550.54.16, and the one there is 550.127.05, which takes no", str(said))


class FactsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF))
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        card, _ = machines.l40s()
        self.card = dataclasses.replace(card, more={"ecc_mode": "1 0"})  # off after the next boot
        self.library = self.useFixture(machines.Library(self.card))
        self.host.add_gpu(card.address, "10de", "26b9", driver="nvidia")
        self.address = PciAddress.parse(card.address)

    def facts(self) -> str:
        found = discovery.cards_at([self.address], self.host.roots)
        return migrate_data.facts_of(found, self.host.roots).get(self.address, "")

    def test_of_the_driver_and_the_card(self) -> None:
        self.assertEqual("; driver 570.172.08; ECC 1", self.facts())
        closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.16  Tue Feb 20 2024\n"
        (self.host.roots.proc / "driver/nvidia/version").write_text(closed)
        self.assertEqual("; driver 550.54.16; ECC 1", self.facts())

    def test_as_far_as_they_are_known(self) -> None:
        self.library.say(dataclasses.replace(self.card, more={}))
        self.assertEqual("; driver 570.172.08", self.facts())
        self.config.config(group="gpu", nvml=False)
        (self.host.roots.proc / "driver/nvidia/version").unlink()
        self.assertEqual("", self.facts())

    def test_nothing_of_others(self) -> None:
        self.host.add_gpu("0000:af:00.0", "8086", "56c0")
        self.address = PciAddress.parse("0000:af:00.0")
        self.assertEqual("", self.facts())
