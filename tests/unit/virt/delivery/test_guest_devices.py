# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fixtures
from nova import objects
from oslo_config import fixture as config_fixture
from oslo_utils.fixture import uuidsentinel
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core.guest import devices, tree
from nova_gpu.core.vgpu.vgpu import VGPUType
from nova_gpu.host.pci import discovery, selection
from nova_gpu.virt.delivery import guest_devices
from tests.fixtures import hosts
from tests.unit.core.guest.test_devices import told
from tests.unit.core.guest.test_tree import PAIR

UPSTREAM = "0000:01:00.0"


class OfCardsTest(base.BaseTestCase):
    def test_links_of_cards_and_switches(self) -> None:
        host = hosts.build("switched-8", self.useFixture(fixtures.TempDir()).path)
        for address, speed in (("0000:04:00.0", "5.0"), ("0000:02:00.0", "8.0"), (UPSTREAM, "2.5")):
            folder = host.path(address)
            (folder / "max_link_speed").write_text(f"{speed} GT/s PCIe\n")
            (folder / "max_link_width").write_text("16\n")
        nvidia = selection.Selection.parse(["10de"], [], [])
        cards = discovery.discover(host.roots, nvidia, {}, dict)[:2]
        planned = tree.of(cards)
        assert planned is not None
        one, other = guest_devices.of_cards(cards, planned.places(), host.roots)
        self.assertEqual({"speed": "5.0 GT/s PCIe", "width": 16}, one["pcie"])
        self.assertIsNone(other["pcie"])
        for each in (one, other):
            assert each["switch"] is not None
            self.assertEqual({"speed": "2.5 GT/s PCIe", "width": 16}, each["switch"]["pcie"])


class TellTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        objects.register_all()
        self.config = self.useFixture(config_fixture.Config(CONF)).config
        self.instance = objects.Instance(
            uuid=uuidsentinel.instance,
            config_drive="True",
            image_ref="",
            system_metadata={"boot_roles": "member"},
        )
        self.saved = self.useFixture(fixtures.MockPatchObject(objects.Instance, "save")).mock

    def kept(self) -> list[devices.GuestDevice]:
        return devices.of_metadata(self.instance.system_metadata)

    def test_what_it_had_before_is_forgotten(self) -> None:
        guest_devices.tell(self.instance, told(*PAIR), [])
        self.assertEqual(told(*PAIR), self.kept())
        part = VGPUType("nvidia-63", "GRID P4-1Q", 1024)
        guest_devices.tell(self.instance, told(PAIR[0]), [part])
        self.assertEqual([*told(PAIR[0]), devices.of_part(1, part)], self.kept())
        guest_devices.tell(self.instance, [], [])
        self.assertEqual({"boot_roles": "member"}, self.instance.system_metadata)

    def test_saved_before_a_config_drive_asks(self) -> None:
        """Nova saves the instance itself when its guest has started."""
        self.config(group="api", vendordata_providers=["StaticJSON", "DynamicJSON"])
        guest_devices.tell(self.instance, told(*PAIR), [])
        self.saved.assert_called_once_with()
        guest_devices.tell(self.instance, told(*PAIR), [])
        self.saved.assert_called_once_with()

    def test_not_saved_where_nobody_asks_then(self) -> None:
        guest_devices.tell(self.instance, told(*PAIR), [])
        self.config(group="api", vendordata_providers=["StaticJSON", "DynamicJSON"])
        self.instance.config_drive = ""
        guest_devices.tell(self.instance, told(PAIR[0]), [])
        self.saved.assert_not_called()
