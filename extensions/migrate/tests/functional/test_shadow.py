# SPDX-License-Identifier: Apache-2.0
"""What ``nova-gpu shadow`` says on a host of stock Nova, and what becomes true of it."""

from __future__ import annotations

from unittest import mock

from nova import objects

from nova_gpu_migrate.core.stock_holding import StockDelivery
from tests.functional import stock


class ShadowTest(stock.StockTestBase):
    HOSTS = ("host1",)

    def test_what_would_be_offered_is_offered(self) -> None:
        self.boot_by_alias()
        report = self.look()
        self.assertEqual((), report.unread)
        (group,) = report.groups
        self.assertEqual(("PGPU", 4), (group.resource_class, group.total))
        self.assertEqual({}, self.groups())
        self.device_spec()
        self.take_driver()
        self.period()
        (uuid,) = self.groups().values()
        name = self.placement.get(f"/resource_providers/{uuid}").body["name"]
        self.assertEqual(group.provider, name)
        self.assertInventory(total=4, reserved=1)

    def test_an_instance_with_a_card(self) -> None:
        server = self.boot_by_alias()
        (holding,) = self.look().holdings
        self.assertEqual(server["id"], holding.instance.uuid)
        self.assertEqual((StockDelivery.ALIAS,), holding.deliveries)
        self.assertEqual(self.has(server), list(map(str, holding.devices)))
        self.assertEqual(("pci_passthrough:alias",), holding.unset)
        self.assertEqual((), tuple(holding.obstacles))
        # The flavor that says the same boots on a host with the same cards.
        self._delete_server(server)
        self.device_spec()
        self.take_driver()
        self.period()
        self.assertEqual(1, len(self.recorded(self.boot(self.flavor(**holding.set)))))

    def test_a_conductor_without_the_apis_database(self) -> None:
        self.boot_by_alias()
        refuses = mock.patch.object(
            objects.RequestSpec, "get_by_instance_uuid", side_effect=ValueError("no connection")
        )
        with refuses:
            (holding,) = self.look().holdings
        (obstacle,) = holding.obstacles
        self.assertIn("nova-conductor does not read its request spec", obstacle.reason)
        self.assertIn("[api_database]connection", obstacle.remedy)
