# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

from nova import exception as nova_exception
from nova import objects

from nova_gpu.core.vgpu.vgpu import Slot, device_uuid
from nova_gpu.virt.live_migration import arrivals
from tests.fixtures.bases import moving
from tests.fixtures.bases.moving import CARD, THERE, WORDS, slots
from tests.fixtures.compute import devices


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
