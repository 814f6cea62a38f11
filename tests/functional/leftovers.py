# SPDX-License-Identifier: Apache-2.0
"""After a test everything is deleted, and nothing is left of it."""

from __future__ import annotations

from typing import Any

from tests.cloud import leftovers

_ALL = 3  # VIR_CONNECT_LIST_DOMAINS_ACTIVE and _INACTIVE


class LeavesNothing:
    """To be named before the test's base.

    Not for tests that end with a host down, a faulty libvirt or a card in quarantine.
    """

    def tearDown(self: Any) -> None:
        for server in self._servers():
            self.api.delete_server(server["id"])
        self._wait_for_assert(lambda: self.assertEqual([], self._servers()))
        for name in self.computes:
            self.period(name)
        self._wait_for_assert(lambda: self.assertEqual([], self.left_behind()))
        super().tearDown()  # type: ignore[misc]

    def _servers(self: Any) -> list[dict[str, Any]]:
        everybodys = {"all_tenants": 1}
        found: list[dict[str, Any]] = self.api.get_servers(detail=False, search_opts=everybodys)
        return found

    def left_behind(self: Any) -> list[str]:
        """Domains, allocations, reserved GPUs and cards in quarantine"""
        found = []
        for name, compute in self.computes.items():
            domains = compute.driver._host.get_connection().listAllDomains(_ALL)
            found += [f"{name}: domain {each.name()}" for each in domains]
            found += [f"{name}: {each}" for each in leftovers.quarantined(self.state(name))]
        for provider in self._get_all_providers():
            url = f"/resource_providers/{provider['uuid']}"
            for consumer, each in (
                self.placement.get(f"{url}/allocations").body["allocations"].items()
            ):
                found.append(f"allocation of {consumer}: {each['resources']}")
            inventories = self.placement.get(f"{url}/inventories").body["inventories"]
            if reserved := inventories.get("PGPU", {}).get("reserved"):
                found.append(f"{reserved} GPUs of {provider['name']} are reserved")
        return found
