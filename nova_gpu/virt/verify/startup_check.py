# SPDX-License-Identifier: Apache-2.0
"""Check after a start of nova-compute: contradictions between the four sources go to the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova_gpu.core import boundary
from nova_gpu.virt.inventory.discovery import Discovery
from nova_gpu.virt.verify import contradictions, gather
from nova_gpu.virt.verify.sources import Difference

LOG = logging.getLogger(__name__)


class Reconciliation:
    """The comparison of the four sources in the first two periods of the service.

    It logs contradictions that both periods find: while an instance changes, a single comparison
    may find one that is none. No claim waits for it. ``is_due``: set once Placement has this host's
    inventories.
    """

    def __init__(
        self, discovery: Discovery, host: libvirt_host.Host, placement: Callable[[], Any]
    ) -> None:
        self._discovery = discovery
        self._host = host
        self._placement = placement
        self._suspected: frozenset[Difference] | None = None
        self.is_due = False
        self._is_done = False

    def look(self) -> None:
        """Compare the sources if that is due; the second time log what was found both times.

        Raise nothing.
        """
        if self._is_done or not self.is_due:
            return
        try:
            with boundary.crossed():
                unavailable = self._discovery.unavailable
                sources = gather.Sources(
                    self._discovery, self._host, self._placement(), unavailable
                )
                state = gather.gather(sources)
                differences = frozenset(contradictions.compare(state))
        except boundary.Failure as error:
            LOG.warning("Cannot compare the GPUs in Nova, libvirt and Placement: %s", error)
            self._is_done = True
            return
        if self._suspected is None:
            self._suspected = differences
            return
        self._is_done = True
        for reason in state.unread:
            LOG.warning(
                "Cannot compare this host's GPUs with a source that cannot be read: %s", reason
            )
        for item in sorted(self._suspected & differences, key=lambda it: (it.kind, it.subject)):
            LOG.error("%s (%s): %s", item.text, item.kind, item.remedy)
