# SPDX-License-Identifier: Apache-2.0
"""The cleanup after resizes and migrations: Nova leaves GPUs in domains and in allocations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from nova.virt.libvirt import host as libvirt_host

from nova_gpu.conf import CONF
from nova_gpu.virt.inventory.assignment import Assigned
from nova_gpu.virt.lifecycle import left_domains
from nova_gpu.virt.lifecycle.releases import Releases
from nova_gpu.virt.usage import domains
from nova_gpu.virt.usage.ledger import Ledger
from nova_gpu.virt.usage.reader import UsageReader
from nova_gpu.virt.verify import abandoned_moves, repair
from nova_gpu.virt.verify.abandoned_moves import AbandonedMoves


@dataclasses.dataclass(frozen=True, slots=True)
class EndedMoves:
    """The cleanup after resizes and migrations from and to one host."""

    host: libvirt_host.Host
    ledger: Ledger
    assigned: Assigned
    releases: Releases
    usage_reader: UsageReader
    parts: Callable[[], domains.Parts]
    _abandoned: AbandonedMoves = dataclasses.field(
        default_factory=lambda: AbandonedMoves(CONF.host)
    )

    def settle(self) -> None:
        """Release GPUs that a failed or interrupted move left in domains and in Placement.

        Remove the GPUs from definitions of shut-off domains, and correct or delete allocations of
        GPUs. Raise nothing.
        """
        left_domains.release(self.host, self.ledger.now, self.releases, self.parts)
        client: Any = self.assigned.placement()
        now = self.ledger.now
        if now.records and now.records.migrations:
            nodename = self.host.get_hostname()
            self._abandoned.end(
                client, nodename, lambda uuid: self.ledger.now.had_by(uuid), now.may_hold
            )
        if not self.usage_reader.read_allocations(client):
            return
        now = self.ledger.now
        if now.records is None or now.allocations is None:
            return
        is_written = abandoned_moves.release_orphans(client, now.allocations, now.instances())
        is_written |= repair.heal(client, now, self.assigned.classes())
        if is_written:
            self.usage_reader.read_allocations(client)
