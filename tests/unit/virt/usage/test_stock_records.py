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
        pci_requests = objects.InstancePCIRequests(
            requests=[objects.InstancePCIRequest(request_id=uuids.request)]
        )
        moved = objects.MigrationContext(new_pci_requests=pci_requests)
        former = objects.InstancePCIRequests(requests=[])
        for requests, move, expected in (
            (former, None, True),
            (None, None, True),
            (pci_requests, None, False),
            (former, moved, False),
        ):
            instance = objects.Instance(
                resources=objects.ResourceList(objects=[gpu]),
                pci_requests=requests,
                migration_context=move,
            )
            row = objects.PciDevice(address="0000:3b:00.0", request_id=uuids.request)
            self.assertEqual(expected, stock_records.is_left(row, instance))

    def test_a_conductor_without_the_apis_database(self) -> None:
        """Nova's own check forbids the database here, also that of the requests."""
        instances = [
            objects.Instance(
                uuid=uuid,
                flavor=objects.Flavor(extra_specs={"gpus": "1"}),
                resources=objects.ResourceList(
                    objects=[objects.Resource(identifier="0000:3b:00.0")]
                ),
            )
            for uuid in (uuids.first, uuids.second)
        ]
        rows = [objects.PciDevice(status="allocated", instance_uuid=i.uuid) for i in instances]
        for kind, method, answer in (
            (objects.ComputeNode, "get_by_host_and_nodename", objects.ComputeNode(id=1)),
            (objects.PciDeviceList, "get_by_compute_node", rows),
            (objects.InstanceList, "get_by_host", instances),
        ):
            self.stub_out(f"nova.objects.{kind.__name__}.{method}", lambda *_, a=answer, **__: a)
        removed: list[str] = []
        self.stub_out(
            "nova_gpu.virt.usage.stock_records.remove",
            lambda _, __, uuid, ___: removed.append(uuid),
        )
        stock_records.end("host1", "node1")
        self.assertEqual([uuids.first, uuids.second], removed)

    def test_a_database_that_does_not_answer(self) -> None:
        """Nova's own check forbids the database here."""
        stock_records.end("host1", "node1")
        self.assertFalse(stock_records.was_ours("host1", "node1"))
