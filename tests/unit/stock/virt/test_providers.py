# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest

from nova import test
from nova.scheduler.client import report
from oslo_utils.fixture import uuidsentinel as uuids

from nova_gpu.core import names
from nova_gpu.core.model import DeliveryMode, GroupKey, PciAddress
from nova_gpu.stock.virt import providers
from tests.fixtures import placement


class FunctionTest(unittest.TestCase):
    def test_of_stock_nova(self) -> None:
        function = PciAddress(0, 0x3B, 0x1F, 7)
        for name in ("host1_0000:3B:1F.7", "host1_pci_0000_3b_1f_7", "a_b_0000:3b:1f.7"):
            self.assertEqual(function, providers.function_of(name), name)
        far = providers.function_of("host1_10000:01:00.0")
        self.assertEqual(PciAddress(0x10000, 1, 0, 0), far)

    def test_of_others(self) -> None:
        own = names.provider_name("host1", GroupKey("10de", "25b6", DeliveryMode.PCI))
        for name in ("host1", own, "host1_pci_0000_3b_00", "0000:3b:00.0", "host1_0000:3b:00.8"):
            self.assertIsNone(providers.function_of(name), name)


class ReadTest(test.NoDBTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.api = self.useFixture(placement.Placement()).api
        body = {"name": "host1_pci_0000_3b_00_0", "uuid": uuids.provider}
        self.api.post("/resource_providers", body, version="1.20")

    def read(self) -> frozenset[str]:
        client = report.SchedulerReportClient()
        return providers.read(client, "host1_pci_0000_3b_00_0", uuids.provider).resource_classes

    def test_its_classes(self) -> None:
        body = {"resource_provider_generation": 0, "inventories": {"CUSTOM_LARGE": {"total": 1}}}
        self.api.put(f"/resource_providers/{uuids.provider}/inventories", body)
        self.assertEqual({"CUSTOM_LARGE"}, self.read())

    def test_one_that_a_takeover_was_about_to_remove(self) -> None:
        self.assertEqual({"VGPU"}, self.read())
