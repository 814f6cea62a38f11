# SPDX-License-Identifier: Apache-2.0
"""The handling of running containers that reach GPUs which Nova does not assign to them.

A container reaches a GPU if its device nodes lead to it, now or earlier since its start: the driver
may give the number of a node to another card.
"""

from __future__ import annotations

from nova.virt.libvirt import host as libvirt_host
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import exception
from nova_gpu.virt.reporter import Reporter
from nova_gpu.virt.usage import domains
from nova_gpu.virt.usage.ledger import Ledger
from nova_gpu.virt.usage.reader import UsageReader

LOG = logging.getLogger(__name__)


def settle(
    host: libvirt_host.Host, ledger: Ledger, usage_reader: UsageReader, reporter: Reporter
) -> None:
    """Record in the domains which GPUs they reach and do not own, and stop these guests.

    They are stopped only if ``[gpu]stop_guests_that_reach_others`` is set. Instances with a
    task in progress, and domains that are not Nova's, keep running.
    """
    now = ledger.now
    if now.reached:
        try:
            domains.note_reached(host, now.reached)
        except exception.DomainsUnreadable as error:
            LOG.warning(
                "%s. The GPUs of others that guests reach are not recorded in their domains.",
                error,
            )
    if not CONF.gpu.stop_guests_that_reach_others or now.records is None:
        return
    reached = now.reached_of_others()
    reaching = (reached.keys() & now.instances()) - now.records.busy
    uuids = {uuid for uuid in reaching if not now.is_between(uuid)}
    if uuids:
        try:
            reporter.report_stopped(domains.stop(host, uuids), reached)
        except exception.DomainsUnreadable as error:
            LOG.error("%s. Guests that reach GPUs of others keep running.", error)
            return
        usage_reader.look_again()
