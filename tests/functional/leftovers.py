# SPDX-License-Identifier: Apache-2.0
"""After a test all agree on what is there; then everything is deleted, and nothing is left."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from nova import context as nova_context
from nova import objects

from tests.cloud import leftovers, oracle, snapshot
from tests.fixtures import economy

_QUIET_S = 30.0


class LeavesNothing:
    """What every cloud is made of: no test has to ask for this.

    ``leaves``: where a test or a class differs because that is its very point: why, by the kind of
    :class:`tests.cloud.oracle.Difference`. All else is counted all the same. ``down``: the hosts
    that were forced down; they come back before everything is deleted.
    """

    leaves: Mapping[str, str] = MappingProxyType({})
    down: set[str]
    heard: snapshot.Heard

    def setUp(self: Any) -> None:
        super().setUp()  # type: ignore[misc]
        self.heard = self.useFixture(snapshot.Heard(self.notifier.fake_notifier))

    def tearDown(self: Any) -> None:
        differences = self.differences() if self._instances_left() else []
        self.delete_everything()
        # A period costs more than a look, and is seldom needed to put things right.
        differences += self._differences_now() and self.differences()
        self.expect_known(differences)
        super().tearDown()  # type: ignore[misc]

    def differences(self: Any) -> list[oracle.Difference]:
        """Return where the cloud contradicts itself after a period of each host that is up."""
        economy.wait_for_quiet(_QUIET_S)
        for name in self.computes:
            if name not in self.down:
                self.period(name)
        return list(self._differences_now())

    def _differences_now(self: Any) -> list[oracle.Difference]:
        """Return where the cloud contradicts itself when nothing goes on any more."""
        economy.wait_for_quiet(_QUIET_S)
        return oracle.differences(None, oracle.read(self))

    def expect_known(self: Any, differences: Iterable[oracle.Difference]) -> None:
        """Expect no difference but those that the test names."""
        unexpected = [
            difference for difference in differences if difference.kind not in self.leaves
        ]
        self.assertEqual([], sorted({str(difference) for difference in unexpected}))

    def delete_everything(self: Any) -> None:
        """As users would, while all hosts are up"""
        for name in sorted(self.down):
            self.bring_back(name)
        for instance in self._instances_left():
            if instance.vm_state == "resized":
                self.confirm({"id": instance.uuid}, self._source(instance.uuid))
            self.api.delete_server(instance.uuid)
        self._wait_for_assert(lambda: self.assertEqual([], self._instances_left()))
        for name in self.computes:
            if self._domains(name):  # of instances that were deleted while it was down
                self.reap(name)

    def _servers(self: Any, *, detail: bool = True) -> list[dict[str, Any]]:
        """Return all servers as the API shows them, of each project."""
        everybodys = {"all_tenants": 1}
        servers: list[dict[str, Any]] = self.api.get_servers(detail=detail, search_opts=everybodys)
        return servers

    def _instances_left(self: Any) -> list[objects.Instance]:
        return [
            instance
            for context in snapshot.contexts(self, nova_context.get_admin_context())
            for instance in objects.InstanceList.get_by_filters(
                context, {"deleted": False}, expected_attrs=[]
            )
        ]

    def _source(self: Any, uuid: str) -> str:
        (move,) = (
            move
            for context in snapshot.contexts(self, nova_context.get_admin_context())
            for move in objects.MigrationList.get_by_filters(
                context, {"instance_uuid": uuid, "status": "finished"}
            )
        )
        return str(move.source_compute)

    def read_hosts(self: Any) -> Iterator[snapshot.Host]:
        """What the oracle reads"""
        for name, compute in self.computes.items():
            roots = self.hosts[name].roots
            system = snapshot.System(roots.sysfs, roots.proc)
            if name in self.down:
                provider, connection = self.compute_rp_uuids[name], self.connection(name)
                yield snapshot.absent(name, provider, connection, system)
            else:
                with self.on(name), self._state_of(name):
                    yield snapshot.host(name, system, compute.manager, self._left(name, system))

    def _left(self: Any, name: str, system: snapshot.System) -> Iterator[tuple[str, str]]:
        for text in leftovers.quarantined(self.state(name)):
            yield "quarantine", text
        for uuid in sorted(system.mediated()):
            yield "vgpu", uuid
        for function in sorted(system.typed()):
            yield "vgpu", f"the type of {function}"
        for node in filter(_is_opened, self.hosts[name].roots.dev.rglob("*")):
            yield "node", f"{node} is open to every user"

    def _domains(self: Any, name: str) -> list[Any]:
        domains: list[Any] = self.connection(name).listAllDomains(snapshot.ALL)
        return domains


def _is_opened(node: pathlib.Path) -> bool:
    """Whether its former mode is noted, which root alone sees"""
    return node.is_char_device() and "trusted.nova-gpu.mode" in os.listxattr(node)
