# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fixtures
from nova import objects, test
from oslo_db import exception as db_exception
from oslo_utils.fixture import uuidsentinel as uuids

from nova_gpu.core import device
from nova_gpu.virt.usage import stock_records


class StockRecordsTest(test.NoDBTestCase):
    def test_whose_function_it_is(self) -> None:
        own = [device.parse(text) for text in ("0000:3b:00.0", "0000:af:00.4/nvidia-35/0")]
        for address, expected in (
            ("0000:3b:00.0", True),
            ("0000:3b:00.1", True),  # its audio
            ("0000:3b:01.0", False),
            ("0000:af:00.4", True),
            ("0000:af:00.5", False),
            ("nonsense", False),
        ):
            row = objects.PciDevice(address=address)
            self.assertEqual(expected, stock_records.is_of(row, own), address)

    def test_a_database_that_does_not_answer(self) -> None:
        """Nova's own check forbids the database here."""
        stock_records.end("host1", "node1")
        self.assertFalse(stock_records.was_ours("host1", "node1"))

    def test_a_conductor_without_the_apis_database(self) -> None:
        """What the cell's database has is ended all the same, and no operator is paged."""
        flavor = objects.Flavor(flavorid="1", extra_specs={"gpus": "1"})
        gpu = objects.Resource(identifier="0000:3b:00.0", provider_uuid=uuids.provider)
        instance = objects.Instance(
            uuid=uuids.instance, flavor=flavor, resources=objects.ResourceList(objects=[gpu])
        )
        row = objects.PciDevice(status="allocated", instance_uuid=uuids.instance)
        removed: list[str] = []
        log = self.useFixture(fixtures.FakeLogger("nova_gpu.virt.usage.stock_records"))
        for owner, name, answer in (
            (objects.ComputeNode, "get_by_host_and_nodename", lambda *_: objects.ComputeNode(id=1)),
            (objects.PciDeviceList, "get_by_compute_node", lambda *_: [row]),
            (objects.InstanceList, "get_by_host", lambda *_, **__: [instance]),
            (stock_records, "remove", lambda context, node, uuid, _: removed.append(uuid)),
        ):
            self.useFixture(fixtures.MockPatchObject(owner, name, answer))
        failure = db_exception.CantStartEngineError("no connection")
        self.useFixture(
            fixtures.MockPatchObject(
                objects.RequestSpec, "get_by_instance_uuid", side_effect=failure
            )
        )
        stock_records.end("host1", "node1")
        self.assertEqual([uuids.instance], removed)
        self.assertIn("are not compared", log.output)
        self.assertNotIn("Cannot remove", log.output)
