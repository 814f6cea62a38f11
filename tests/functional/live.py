# SPDX-License-Identifier: Apache-2.0
"""What libvirt does with a guest that moves as it runs."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable
from typing import Any

import fixtures
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.fixtures import libvirt
from tests.functional.base import Server

# As Nova has them for mediated devices
LIBVIRT, QEMU = 8006000, 8001000
# What libvirt says of a guest with a device, by QEMU's name, whose driver cannot save its state.
NO_STATE = (
    "internal error: unable to execute QEMU command 'migrate': {}: VFIO migration is not supported "
    "in kernel"
)


class Moving:
    """``during``: what a test does while the guest is on its way, and runs at the source.
    ``refusal``: what libvirt says then instead of moving it."""

    refusal: str | None = None

    def setUp(self: Any) -> None:
        self.during: Callable[[], None] = lambda: None
        self.moves = 0

        def migrate(domain: Any, destination: str, params: dict[str, Any], flags: int) -> None:
            self._libvirt_moves(domain, destination, params)

        for name, substitute in (
            ("tests.fixtures.libvirt.Domain.migrateToURI3", migrate),
            ("nova.tests.fixtures.libvirt.FAKE_LIBVIRT_VERSION", LIBVIRT),
            ("nova.tests.fixtures.libvirt.FAKE_QEMU_VERSION", QEMU),
        ):
            self.useFixture(fixtures.MonkeyPatch(name, substitute))
        super().setUp()  # type: ignore[misc]

    def _libvirt_moves(self: Any, domain: Any, destination: str, params: dict[str, Any]) -> None:
        self.moves += 1
        # Of what has not begun, and of what was refused. Nova 32's own begins as one that goes on.
        domain._job_type = fakelibvirt.VIR_DOMAIN_JOB_NONE
        self.during()
        if self.refusal is not None:
            raise libvirt.error(self.refusal, fakelibvirt.VIR_ERR_OPERATION_UNSUPPORTED)
        host = urllib.parse.urlsplit(destination).hostname
        self.connection(host).defineXML(params["destination_xml"]).create()
        domain.destroy()
        domain.undefine()
        domain.complete_job()

    def live_migrate(
        self: Any, server: Server, host: str | None = None, expected: str = "completed"
    ) -> None:
        """To its end; the guest runs before and after."""
        action = {"os-migrateLive": {"host": host, "block_migration": "auto"}}
        self.api.post_server_action(server["id"], action)

        def has_ended() -> None:
            migrations = self.admin_api.api_get("/os-migrations").body["migrations"]
            newest = max(migrations, key=lambda migration: int(migration["id"]))
            self.assertEqual(expected, newest["status"])
            # The last that Nova does
            held = self.placement.get(f"/allocations/{newest['uuid']}").body["allocations"]
            self.assertEqual({}, held)

        self._wait_for_assert(has_ended)
        self._wait_until_settled(server)

    def live_migration_refused(self: Any, server: Server, host: str | None = None) -> str:
        """All that its owner reads of it; the guest was not touched."""
        before = self.moves
        action = {"os-migrateLive": {"host": host, "block_migration": "auto"}}
        messages: list[str] = self.refused(action, server)
        self.assertEqual(before, self.moves)
        self._wait_until_settled(server)
        return "\n".join(messages)
