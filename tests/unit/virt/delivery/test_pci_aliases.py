# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from typing import Any

import fixtures
from nova import exception as nova_exception
from oslotest import base

from nova_gpu.virt.delivery import pci_aliases
from tests.fixtures import cards, hosts

A, B = "0000:3b:00.0", "0000:5e:00.0"


class DeviceSpecTest(base.BaseTestCase):
    """``[pci]device_spec`` as Nova's own reader has it, over a generated host."""

    def setUp(self) -> None:
        super().setUp()
        self.host = hosts.Host(self.useFixture(fixtures.TempDir()).path)
        for address in (A, B):
            self.host.add_gpu(address, "10de", "2330")

    def obstacles(self, *specs: dict[str, Any]) -> dict[str, str | None]:
        option = pci_aliases.DeviceSpec([json.dumps(spec) for spec in specs])
        return {a: option.obstacle(cards.addresses(a), self.host.roots) for a in (A, B)}

    def test_none(self) -> None:
        self.assertEqual({A: None, B: None}, self.obstacles())

    def test_by_address(self) -> None:
        found = self.obstacles({"address": B})
        self.assertIsNone(found[A])
        self.assertIn(f'[pci]device_spec = {{"address": "{B}"}}', found[B] or "")
        self.assertIn("[gpu]addresses", found[B] or "")

    def test_by_product(self) -> None:
        self.assertEqual({A: None, B: None}, self.obstacles({"product_id": "1db4"}))
        self.assertNotIn(None, self.obstacles({"vendor_id": "10de", "product_id": "2330"}).values())

    def test_one_of_several(self) -> None:
        found = self.obstacles({"product_id": "1db4"}, {"address": A})
        self.assertEqual([A], [address for address, reason in found.items() if reason])

    def test_what_nova_cannot_read(self) -> None:
        with self.assertRaises(nova_exception.NovaException):
            self.obstacles({"address": "no address"})
