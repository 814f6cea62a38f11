# SPDX-License-Identifier: Apache-2.0
"""After a start of the service: what the four state contradict each other in, said in the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova_gpu.core import boundary
from nova_gpu.virt.inventory import discovery
from nova_gpu.virt.verify import contradictions, gather
from nova_gpu.virt.verify.sources import Difference

LOG = logging.getLogger(__name__)


class Reconciliation:
    """Compares in the first two periods, and says once what was so both times.

    In the first alone an instance may be between one of the four and the next. It runs where the
    period does, outside of what claims wait for. ``is_due``: Placement has been told what there is.
    """

    def __init__(
        self, discovered: discovery.Discovery, host: libvirt_host.Host, placement: Callable[[], Any]
    ) -> None:
        self._looked = discovered
        self._host = host
        self._placement = placement
        self._suspected: frozenset[Difference] | None = None
        self.is_due = False
        self._is_done = False

    def look(self) -> None:
        """Raise nothing: the service goes on whatever is the matter."""
        if self._is_done or not self.is_due:
            return
        try:
            with boundary.crossed():
                unavailable = self._looked.unavailable
                sources = gather.Sources(self._looked, self._host, self._placement(), unavailable)
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
            LOG.warning("Cannot compare what it has of this host's GPUs: %s", reason)
        for difference in sorted(
            self._suspected & differences,
            key=lambda difference: (difference.kind, difference.subject),
        ):
            LOG.error("%s (%s): %s", difference.text, difference.kind, difference.remedy)
