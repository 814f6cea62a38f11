# SPDX-License-Identifier: Apache-2.0
"""The reader of the devices' owners: libvirt, Nova's database and Placement, into the ledger."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from nova import context as nova_context
from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import boundary, exception
from nova_gpu.virt.usage import allocations, domains, ledger, records

LOG = logging.getLogger(__name__)

# How long one reading of the domains waits for another one, which takes milliseconds.
_PATIENCE_S = 60.0


class UsageReader:
    """The reader of libvirt's domains, Nova's database and Placement's allocations.

    If a source does not answer, the ledger keeps what it has.

    :param parts: return the mapping from device nodes and PCI functions to the host's devices
    """

    def __init__(
        self, host: libvirt_host.Host, noted: ledger.Ledger, parts: Callable[[], domains.Parts]
    ) -> None:
        self._host = host
        self._noted = noted
        self._parts = parts
        self._compute_host = CONF.host
        self._looking = threading.Lock()
        self._seen: dict[str, domains.DomainDevices] = {}

    @property
    def opened(self) -> ledger.DevicesByUuid:
        """The devices that each guest could open when the domains were last read, by uuid."""
        return {uuid: item.opened for uuid, item in self._seen.items()}

    def look_at_domains(self) -> ledger.DevicesByUuid:
        """Read the domains into the ledger, and return the devices of each domain by its uuid.

        :raises DomainsUnreadable: if libvirt does not list the domains
        """
        # One at a time, so that no answer replaces a newer one.
        if not self._looking.acquire(timeout=_PATIENCE_S):
            raise exception.DomainsUnreadable("it has not answered an earlier request for a minute")
        try:
            since = self._noted.now
            guests = self._seen = domains.look(self._host, self._parts(), self._seen)
            named = {uuid: item.every for uuid, item in guests.items()}
            self._noted.saw_domains(named, {u: item.reached for u, item in guests.items()}, since)
        finally:
            self._looking.release()
        return named

    def look_again(self) -> bool:
        """Read the domains into the ledger, and return whether libvirt answered."""
        try:
            self.look_at_domains()
        except exception.DomainsUnreadable as error:
            LOG.error("%s. nova-compute goes on with the GPUs' last known state.", error)
            return False
        return True

    def read_records(self) -> bool:
        """Read Nova's database into the ledger, and return whether it answered."""
        context = nova_context.get_admin_context()
        try:
            with boundary.crossed():
                nodename = self._host.get_hostname()
                self._noted.read_records(
                    lambda guests: records.read(
                        context, self._compute_host, nodename, guests, self._noted.now.records
                    )
                )
        except boundary.Failure as error:
            LOG.warning("Cannot read the GPUs of this host's instances: %s", error)
            return False
        return True

    def read_allocations(self, client: Any) -> bool:
        """Read Placement's allocations into the ledger, and return whether it answered."""
        try:
            with boundary.crossed():
                nodename = self._host.get_hostname()
                self._noted.read_allocations(
                    lambda instances, last: allocations.read(
                        client, nodename, instances, last or allocations.Allocations()
                    )
                )
        except boundary.Failure as error:
            LOG.warning("Cannot read what Placement allocates of this host's GPUs: %s", error)
            return False
        return True
