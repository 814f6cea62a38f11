# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from nova import objects, test
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

    def test_a_function_that_a_request_gave_stays(self) -> None:
        """The instance has come from a host where its GPU has the address of a device here."""
        gpu = objects.Resource(identifier="0000:3b:00.0")
        asked = objects.InstancePCIRequests(
            requests=[objects.InstancePCIRequest(request_id=uuids.request)]
        )
        moved = objects.MigrationContext(new_pci_requests=asked)
        former = objects.InstancePCIRequests(requests=[])
        for requests, move, expected in (
            (former, None, True),
            (None, None, True),
            (asked, None, False),
            (former, moved, False),
        ):
            instance = objects.Instance(
                resources=objects.ResourceList(objects=[gpu]),
                pci_requests=requests,
                migration_context=move,
            )
            row = objects.PciDevice(address="0000:3b:00.0", request_id=uuids.request)
            self.assertEqual(expected, stock_records.is_left(row, instance))

    def test_a_database_that_does_not_answer(self) -> None:
        """Nova's own check forbids the database here."""
        stock_records.end("host1", "node1")
        self.assertFalse(stock_records.was_ours("host1", "node1"))
