# SPDX-License-Identifier: Apache-2.0
"""Lists of Nova's as commands read them, next to openstacksdk's."""

from __future__ import annotations

from unittest import mock

from osc_gpu import hosts, nova_lists, rest
from tests.fixtures.bases.reading import ReadingTestCase, new_uuid


class ListsTest(ReadingTestCase):
    PAGE = 2

    def test_servers_are_those_of_openstacksdk(self) -> None:
        self.add_host("host", self.firm, 3)
        self.nova.servers[0] |= {
            "locked": True,
            "metadata": {"key": "value"},
            "fault": {"message": "why"},
            "OS-EXT-STS:task_state": "rebooting",
            "OS-EXT-AZ:availability_zone": "nova",
            "OS-EXT-SRV-ATTR:reservation_id": "r-1",
            "image": "",
        }
        # of a cell that does not answer
        unknown = {"id": new_uuid(), "tenant_id": "p1", "status": "UNKNOWN", "created": "2026"}
        self.nova.servers.append(unknown)
        connection = self.connect()
        theirs = list(connection.compute.servers(details=True, all_projects=True))
        self.request_counts.clear()
        snapshot = rest.CachedConnection(connection)
        for _ in range(2):
            own = snapshot.compute.servers(details=True, all_projects=True)
        self.assertEqual(2, self.request_counts["/servers/detail"])
        for server, other in zip(own, theirs, strict=True):
            for name in nova_lists._OF_SERVER:
                self.assertEqual(getattr(other, name), getattr(server, name), name)
            self.assertEqual(bool(other.image and other.image.id), bool(server.image))
            self.assertEqual(bool(other.flavor), bool(server.flavor))
            for name in ("name", *nova_lists._OF_FLAVOR) if server.flavor else ():
                self.assertEqual(getattr(other.flavor, name), getattr(server.flavor, name), name)

    def test_nova_asks_no_host_for_a_list_of_hosts(self) -> None:
        self.add_host("host", self.firm, 1)
        connection = self.connect()
        with mock.patch.object(self.nova, "send", wraps=self.nova.send) as sent:
            self.assertEqual(
                ["host"], [name for name, _ in hosts.compute_nodes(connection).values()]
            )
        versions = [call.args[0].headers.get("OpenStack-API-Version") for call in sent.mock_calls]
        self.assertEqual("compute 2.53", versions[-1])
