# SPDX-License-Identifier: Apache-2.0
"""After a test everything is deleted, and nothing is left of it."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from nova_gpu.host.state import quarantine
from nova_gpu.host.vgpu import mdev
from tests.cloud import leftovers

# Nova ends it in finish_resize alone, which is not called where the source fails.
_NOVAS = ("prep_resize_at_dest",)
_ALL = 3  # VIR_CONNECT_LIST_DOMAINS_ACTIVE and _INACTIVE


class LeavesNothing:
    """What every cloud is made of: no test has to ask for this.

    ``leaves``: what a test or a class leaves because that is its very point: why, by the kind of
    thing, which is one of those of :meth:`left_behind`. All else is counted all the same.
    ``down``: the hosts that were forced down; they come back before anything is counted.
    """

    leaves: Mapping[str, str] = MappingProxyType({})
    down: set[str]

    def tearDown(self: Any) -> None:
        self.delete_everything()
        self._wait_for_assert(self._expect_nothing_left)
        super().tearDown()  # type: ignore[misc]

    def delete_everything(self: Any) -> None:
        """As users would, while all hosts are up; then every host has a period."""
        for name in sorted(self.down):
            self.bring_back(name)
        for server in self._servers():
            if server["status"] == "VERIFY_RESIZE":
                self.confirm(server, self._source(server))
            self.api.delete_server(server["id"])
        self._wait_for_assert(lambda: self.assertEqual([], self._servers(detail=False)))
        for name in self.computes:
            if self._domains(name):  # of instances that were deleted while it was down
                self.reap(name)
            self.period(name)

    def _servers(self: Any, *, detail: bool = True) -> list[dict[str, Any]]:
        everybodys = {"all_tenants": 1}
        found: list[dict[str, Any]] = self.api.get_servers(detail=detail, search_opts=everybodys)
        return found

    def _source(self: Any, server: dict[str, Any]) -> str:
        url = f"/os-migrations?instance_uuid={server['id']}&status=finished"
        return str(self.admin_api.api_get(url).body["migrations"][0]["source_compute"])

    def _expect_nothing_left(self: Any) -> None:
        left = [f"{kind}: {text}" for kind, text in self.left_behind() if kind not in self.leaves]
        self.assertEqual([], left)

    def left_behind(self: Any) -> Iterator[tuple[str, str]]:
        """Each by its kind: ``domain``, ``quarantine``, ``vgpu``, ``hold``, ``node``,
        ``task``, ``allocation``, ``reserved``"""
        for name, compute in self.computes.items():
            for domain in self._domains(name):
                yield "domain", f"{domain.name()} of {name}"
            for each in leftovers.quarantined(self.state(name)):
                yield "quarantine", f"{name}: {each}"
            for each in sorted(mdev.devices(self.hosts[name].roots)):
                yield "vgpu", f"{each} of {name}"
            for path in sorted(self.hosts[name].devices.glob("*/nvidia/current_vgpu_type")):
                if (number := path.read_text().strip()) != "0":
                    yield "vgpu", f"the type {number} of {path.parent.parent.name} of {name}"
            for node in filter(_is_opened, self.hosts[name].roots.dev.rglob("*")):
                yield "node", f"{node} of {name} is open to every user"
            # Nova 34 waits for these at a stop, for as long as it waits for anything.
            for task in getattr(compute.manager, "_in_progress_tasks", {}).values():
                if task["name"] in _NOVAS:
                    continue
                yield "task", f"{task['name']} of {task['instance_uuid']} on {name} has not ended"
            usage = compute.driver._gpus.ledger.now
            # What is in quarantine is cleaned when it is released.
            dirty = set(usage.used)
            with contextlib.suppress(OSError):  # then each is kept
                dirty -= quarantine.load(self.state(name) / "gpu-quarantine").keys()
            used = set(map(str, dirty))
            for address in sorted(used.union(map(str, usage.taken()))):
                yield "hold", f"{name} keeps {address} for a guest, or has to clean it"
        for provider in self._get_all_providers():
            url = f"/resource_providers/{provider['uuid']}"
            allocations = self.placement.get(f"{url}/allocations").body["allocations"]
            for consumer, each in allocations.items():
                yield "allocation", f"{each['resources']} of {provider['name']} for {consumer}"
            inventories = self.placement.get(f"{url}/inventories").body["inventories"]
            for resource_class in ("PGPU", "VGPU"):
                if reserved := inventories.get(resource_class, {}).get("reserved"):
                    yield "reserved", f"{reserved} {resource_class} of {provider['name']}"

    def _domains(self: Any, name: str) -> list[Any]:
        found: list[Any] = self.connection(name).listAllDomains(_ALL)
        return found


def _is_opened(node: pathlib.Path) -> bool:
    """Whether its former mode is noted, which root alone sees"""
    return node.is_char_device() and "trusted.nova-gpu.mode" in os.listxattr(node)
