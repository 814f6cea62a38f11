# SPDX-License-Identifier: Apache-2.0
"""What a test asks of two hosts, and of a guest that counts while it moves between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tests.vfio import base, benches

HERE, THERE = benches.PAIR.hosts
_COUNTED = re.compile(r"^guest: counted (\d+)\r?$", re.MULTILINE)
_ENDS = {"completed", "failed", "error"}
# All memory is copied, some of it twice, from one emulated processor to another.
_MOVED_S = 900


class MovesTestCase(base.VFIOTestCase):
    # The instance

    def boot_at(self, host: str, flavor: str) -> dict[str, Any]:
        server: dict[str, Any] = self.cloud._create_server(
            flavor_id=flavor, networks="none", host=host, api=self.cloud.admin_api
        )
        return server

    def begin_move(self, server: dict[str, Any], host: str) -> None:
        action = {"os-migrateLive": {"host": host, "block_migration": "auto"}}
        self.api.post_server_action(server["id"], action)

    def live_migrate(self, server: dict[str, Any], host: str, expected: str = "completed") -> None:
        """To its end, of which the last is that Placement has nothing for the move any more."""
        number = len(self.migrations())
        self.begin_move(server, host)

        def has_ended() -> bool:
            if len(migrations := self.migrations()) == number:
                return False
            uuid, status = migrations[-1]["uuid"], migrations[-1]["status"]
            self.assertNotIn(status, _ENDS - {expected})
            held = self.cloud.placement.get(f"/allocations/{uuid}").body["allocations"]
            return bool(status == expected and not held)

        self.cloud.wait_for(f"{server['id']} is moved", has_ended, _MOVED_S)
        self.cloud.wait_until(server, "ACTIVE")

    def migrations(self) -> list[dict[str, Any]]:
        """All, the newest last"""
        migrations = self.cloud.admin_api.api_get("/os-migrations").body["migrations"]
        return sorted(migrations, key=lambda migration: int(migration["id"]))

    def told(self, server: dict[str, Any]) -> str:
        """What its user reads of the last live migration"""
        actions = self.api.get_instance_actions(server["id"])
        request = next(action for action in actions if action["action"] == "live-migration")[
            "request_id"
        ]
        url = f"/servers/{server['id']}/os-instance-actions/{request}"
        events = self.api.api_get(url).body["instanceAction"]["events"]
        return "\n".join(event["details"] or "" for event in events)

    # The guest

    def counted(self, server: dict[str, Any], host: str) -> Sequence[int]:
        """All that it has said on its console there, after three times at least"""

        def said() -> list[int]:
            return [int(number) for number in _COUNTED.findall(self.cloud.console(server, host))]

        self.cloud.wait_for(f"{server['id']} counts on {host}", lambda: len(said()) > 2)
        return said()

    def assertGoesOn(self, before: Sequence[int], after: Sequence[int]) -> None:
        self.assertEqual(list(range(after[0], after[0] + len(after))), after)
        self.assertGreater(after[0], before[-1])
