# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import fixtures
import libvirt
from lxml import etree
from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.virt.libvirt import config as vconfig
from nova.virt.libvirt import guest as libvirt_guest

from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.virt.delivery import guest_config
from nova_gpu.virt.live_migration import arrivals, departures, migrate_data
from tests.fixtures.bases import moving
from tests.fixtures.bases.moving import CARD, THERE, WORDS, slots
from tests.fixtures.compute import devices, resources
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

    def test_offered(self) -> None:
        data = arrivals.offered(self.moves, self.instance, self.data())
        self.assertEqual({}, data.target_mdevs)
        self.assertTrue(data.dst_supports_numa_live_migration)
        self.assertNotIn("target_mdevs", arrivals.offered(self.moves, self.plain, self.data()))

    def test_claimed(self) -> None:
        data = self.claimed(self.instance, dict.fromkeys(slots(THERE, 0, 1), WORDS))
        self.assertEqual({}, data.source_mdev_types, "else Nova looks for some of its own")
        self.assertNotIn("dst_numa_info", data)
        self.abort.assert_not_called()

    def test_claimed_what_is_of_no_use(self) -> None:
        asked = dict.fromkeys(slots(THERE, 0, 1), WORDS)
        other = dict(asked)
        other[slots(THERE, 1)[0]] = WORDS.replace("a-63", "a-64")
        self.refused(self.instance, other, "on host1: the guest has nvidia-64 of")
        del other[slots(THERE, 1)[0]]
        self.refused(self.instance, other, "has 1 vGPUs, and 2 were claimed")
        gone = self.moving(slots(THERE, 0), slots("0000:d8:00.0", 0), here="new")
        self.refused(gone, dict.fromkeys(slots(THERE, 0), WORDS), "cannot be given")

    def test_mapped(self) -> None:
        data = self.data(target_mdevs={}, src_supports_numa_live_migration=True)
        arrivals.mapped(self.moves, self.instance, data)
        old, new = (list(map(Slot.parse, slots(*at))) for at in ((THERE, 0, 1), (CARD, 2, 3)))
        uuid = self.instance.uuid
        pairs = zip(old, new, strict=True)
        expected = {device_uuid(uuid, one): device_uuid(uuid, two) for one, two in pairs}
        self.assertEqual(expected, data.target_mdevs)
        with self.assertRaisesRegex(nova_exception.MigrationPreCheckError, "RPC.*too old"):
            arrivals.mapped(self.moves, self.instance, self.data(target_mdevs={}))

    def test_prepared(self) -> None:
        """Made, and kept although no domain of this host names it yet"""
        arrivals.prepare(self.moves, self.instance)
        made = [device_uuid(self.instance.uuid, Slot.parse(each)) for each in slots(CARD, 2, 3)]
        self.assertEqual(sorted(made), self.kernel.made)
        self.assertEqual(devices(slots(CARD, 2, 3)), self.ledger.now.kept_by(self.instance.uuid))
        arrivals.prepare(self.moves, self.plain)


class AskedTest(moving.MovingTestCase):
    def test_asked(self) -> None:
        instance = self.has(*slots(CARD, 0))
        data = departures.asked(self.moves, instance, self.data(target_mdevs={}))
        self.assertEqual({slots(CARD, 0)[0]: WORDS}, data.source_mdev_types)
        self.assertTrue(data.src_supports_numa_live_migration)
        plain = departures.asked(self.moves, self.plain, self.data())
        self.assertNotIn("source_mdev_types", plain)

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


class LeavingTest(moving.MovingTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.instance = self.moving(slots(CARD, 0), slots(THERE, 3), here="old")
        self.context = nova_context.get_admin_context()
        # The domain and the instance's action are others'.
        self.migrate, self.note = (
            self.useFixture(fixtures.MockPatchObject(owner, name)).mock
            for owner, name in ((libvirt_guest.Guest, "migrate"), (departures, "_note"))
        )

    @property
    def migrated(self) -> str:
        """The XML that Nova has migrated the domain with"""
        return str(self.migrate.call_args.kwargs["destination_xml"])

    def leave(self, instance: Any) -> None:
        guest = libvirt_guest.Guest(object())
        xml = f"""<domain><metadata><gpus xmlns="urn:nova-gpu:domain:1">
            <gpu address="{slots(CARD, 0)[0]}"/></gpus></metadata></domain>"""
        with departures.leaving(self.moves, self.context, instance, guest) as moved:
            moved.migrate("host2", destination_xml=xml)

    def test_its_metadata_names_what_it_will_have(self) -> None:
        self.leave(self.instance)
        named = etree.fromstring(self.migrated).xpath("//*[local-name()='gpu']/@address")
        self.assertEqual(slots(THERE, 3), named)
        kept = self.ledger.now.kept_by(self.instance.uuid)
        self.assertEqual(devices(slots(CARD, 0)), kept, "until Nova cleans up")
        self.leave(self.plain)  # is left alone
        self.assertIn(slots(CARD, 0)[0], self.migrated)

    def test_what_libvirt_refuses_is_told_to_the_user(self) -> None:
        """It goes on as it was, and not to ERROR."""
        uuid = device_uuid(self.instance.uuid, Slot.parse(slots(CARD, 0)[0]))
        self.migrate.side_effect = libvirt.libvirtError(
            f"Requested operation is not valid: {uuid}: VFIO migration is not supported in kernel"
        )
        self.leave(self.instance)
        self.assertIn("the guest continues on this host", self.log.output)
        self.note.assert_called_once()
        # Any other error goes through.
        lost = nova_exception.MigrationError(reason="the network is down")
        self.migrate.side_effect = lost
        self.assertRaises(nova_exception.MigrationError, self.leave, self.instance)
        self.note.assert_called_once()


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
