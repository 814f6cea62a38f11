# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import fixtures
import libvirt
from lxml import etree
from nova import context as nova_context
from nova import exception as nova_exception
from nova.virt.libvirt import guest as libvirt_guest

from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.virt.live_migration import departures
from tests.fixtures.bases import moving
from tests.fixtures.bases.moving import CARD, THERE, WORDS, slots
from tests.fixtures.compute import devices


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
