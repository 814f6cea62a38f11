# SPDX-License-Identifier: Apache-2.0
"""MIG instances of a generated host, which are there or are not."""

from __future__ import annotations

import fixtures
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.core.vgpu import vgpu
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.virt.delivery import mig_instance
from tests.fixtures import hosts, nodes

CARD = "0000:5e:00.0"
UUID = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"
SLOT = Slot.parse(f"{CARD}/1g.18gb/900")


class MIGInstancesTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        root = self.useFixture(fixtures.TempDir()).path
        self.config = self.useFixture(config_fixture.Config(CONF)).config
        self.config(group="libvirt", uid_maps=[])
        self.host = hosts.Host(root, nodes=nodes.Nodes.FILES)
        self.host.add_gpu(CARD, "10de", "2335", mig=[(9, 0)])
        roots = self.host.roots
        self.way = mig_instance.MIGInstances(roots, lambda _: None, serves=True)
        self.ended: list[str] = []
        self.useFixture(
            fixtures.MonkeyPatch(
                "nova_gpu.privsep.cleaning.end_processes",
                lambda each: self.ended.append(each) or [],
            )
        )

    def test_there(self) -> None:
        self.assertTrue(self.way.is_there(SLOT, UUID, None))
        self.way.prepare(SLOT, UUID)
        self.assertTrue(self.way.clean(SLOT))
        self.assertEqual([str(SLOT)], self.ended)

    def test_gone(self) -> None:
        self.host.set_mig(CARD, [(10, 0)])
        self.assertFalse(self.way.is_there(SLOT, UUID, None))
        error = self.assertRaises(exception.DeviceUnavailable, self.way.prepare, SLOT, UUID)
        self.assertIn(vgpu.LOST, str(error))
        self.assertFalse(self.way.clean(SLOT))
        self.assertEqual([], self.ended)

    def test_given_back_it_is_cleaned_and_stays(self) -> None:
        cleaned: list[Slot] = []
        self.way.release(SLOT, None, cleaned.append)
        self.assertEqual([SLOT], cleaned)

    def test_divided_as_the_option_says(self) -> None:
        make = fixtures.MockPatch("nova_gpu.privsep.vgpu.make_mig_instances", return_value=7)
        self.useFixture(make)
        mig_instance.divide(CARD, "1g.18gb")
        make.mock.assert_called_once_with(CARD, "1g.18gb")
