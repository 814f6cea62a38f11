# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

from nova import exception as nova_exception
from nova import objects
from nova.virt.libvirt import config as vconfig

from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.virt.delivery import guest_config
from nova_gpu.virt.live_migration import arrivals, departures, migrate_data
from tests.fixtures.bases import moving
from tests.fixtures.bases.moving import CARD, THERE, WORDS, slots
from tests.fixtures.compute import devices
from tests.fixtures.histories import Domain


class ArrivalsTest(moving.MovingTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.instance = self.moving(slots(THERE, 0, 1), slots(CARD, 2, 3), here="new")
        self.abort = mock.Mock()

    def claimed(self, instance: objects.Instance, asked: dict[str, str], **claim: Any) -> Any:
        data = self.data(
            source_mdev_types=asked, dst_numa_info=objects.LibvirtLiveMigrateNUMAInfo()
        )
        made = SimpleNamespace(claimed_numa_topology=None, abort=self.abort, **claim)
        return arrivals.claimed(self.moves, instance, data, made)

    def refused(self, instance: objects.Instance, asked: dict[str, str], said: str) -> None:
        with self.assertRaisesRegex(nova_exception.MigrationPreCheckError, said):
            self.claimed(instance, asked)
        self.abort.assert_called()  # nobody else waits for what was claimed

    def test_claimed_what_is_of_no_use(self) -> None:
        asked = dict.fromkeys(slots(THERE, 0, 1), WORDS)
        other = dict(asked)
        other[slots(THERE, 1)[0]] = WORDS.replace("a-63", "a-64")
        self.refused(self.instance, other, "on host1: the guest has nvidia-64 of")
        del other[slots(THERE, 1)[0]]
        self.refused(self.instance, other, "has 1 vGPUs, and 2 were claimed")
        gone = self.moving(slots(THERE, 0), slots("0000:d8:00.0", 0), here="new")
        self.refused(gone, dict.fromkeys(slots(THERE, 0), WORDS), "cannot be given")

    def test_prepared(self) -> None:
        """Made, and kept although no domain of this host names it yet"""
        arrivals.prepare(self.moves, self.instance)
        made = [device_uuid(self.instance.uuid, Slot.parse(each)) for each in slots(CARD, 2, 3)]
        self.assertEqual(sorted(made), self.kernel.made)
        self.assertEqual(devices(slots(CARD, 2, 3)), self.ledger.now.kept_by(self.instance.uuid))
        arrivals.prepare(self.moves, self.plain)


class AskedTest(moving.MovingTestCase):
    def test_refused(self) -> None:
        mine, gone = self.has(*slots(CARD, 0)), self.has(*slots("0000:d8:00.0", 0))
        own = {"target_mdevs": {}, "source_mdev_types": {"a": "nvidia-63"}}
        for instance, data, said in (
            (mine, self.data(), "takes no running guest with vGPUs"),
            (mine, self.data(**own), "from Nova itself"),
            (gone, self.data(target_mdevs={}), "cannot be given"),
        ):
            with self.assertRaisesRegex(nova_exception.MigrationPreCheckError, said):
                departures.asked(self.moves, instance, data)


class MovesTest(moving.MovingTestCase):
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
