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

    def test_which_are_nova_s_own(self) -> None:
        """By address, by product, and where it is one of several"""
        other, h100 = {"product_id": "1db4"}, {"vendor_id": "10de", "product_id": "2330"}
        for specs, named in (
            ((), []),
            (({"address": B},), [B]),
            ((other,), []),
            ((h100,), [A, B]),
            ((other, {"address": A}), [A]),
        ):
            found = self.obstacles(*specs)
            self.assertEqual(named, [address for address, reason in found.items() if reason])
        found = self.obstacles({"address": B})
        self.assertIn(f'[pci]device_spec = {{"address": "{B}"}}', found[B] or "")
        self.assertIn("[gpu]addresses", found[B] or "")
        with self.assertRaises(nova_exception.NovaException):
            self.obstacles({"address": "no address"})
