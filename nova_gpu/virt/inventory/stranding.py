# SPDX-License-Identifier: Apache-2.0
"""The host's check that a new instance without GPUs leaves enough vCPUs and memory for free GPUs.

The scheduler has made this check already, with a report of this host that is up to a period old.
The host repeats it with Placement's current usage, which includes every instance that is about to
start here. A GPU that becomes free later is not considered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nova import context as nova_context
from nova import objects
from nova.compute import vm_states
from oslo_log import log as logging

from nova_gpu.conf import CONF
from nova_gpu.core import boundary, exception
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.scheduling import fit, stats
from nova_gpu.virt.inventory import placement_client

LOG = logging.getLogger(__name__)


def reserved() -> stats.Reserved:
    """Return the vCPUs and the memory that the options reserve for each free GPU."""
    return stats.Reserved(
        CONF.gpu.reserved_vcpus_per_free_gpu, CONF.gpu.reserved_memory_mib_per_free_gpu
    )


def refuse(
    instance: objects.Instance,
    request: FlavorRequest,
    free_gpus: Callable[[], int],
    left: Callable[[], tuple[float, float]],
) -> None:
    """Refuse a new instance without GPUs if it leaves too few vCPUs or MiB for free GPUs here.

    Nova then tries another host. An instance that existed before is never refused, because Nova
    would not try another host for it. If Placement does not answer, nothing is refused.

    :param free_gpus: return the number of this host's GPUs that a new instance could get
    :param left: return the number of free vCPUs and the MiB of free memory
    """
    reserve = reserved()
    if not reserve or instance.vm_state != vm_states.BUILDING:
        return
    free = free_gpus()
    if not free or not request.is_cpu_only:
        return
    try:
        with boundary.crossed():
            vcpus, memory_mib = left()
    except boundary.Failure as error:
        LOG.warning(
            "Starting this instance unchecked: it may leave too few vCPUs or too little memory for "
            "this host's free GPUs: %s",
            error,
            instance=instance,
        )
        return
    if reason := fit.stranded(vcpus, memory_mib, free, reserve):
        raise exception.BetterElsewhere(
            None,
            f"this host keeps vCPUs and memory for its free GPUs: {reason}",
            "another host has no GPUs free",
        )


def left(client: Any, nodename: str) -> tuple[float, float]:
    """Return the number of free vCPUs and the MiB of free memory of the host, by Placement.

    Both include the overcommitment that the allocation ratios allow.
    """
    context = nova_context.get_admin_context()
    uuid = client.get_provider_by_name(context, nodename)["uuid"]
    url = f"/resource_providers/{uuid}"
    inventories = placement_client.get(client, f"{url}/inventories")["inventories"]
    usages = placement_client.get(client, f"{url}/usages")["usages"]
    left = {
        resource_class: (item["total"] - item["reserved"]) * item["allocation_ratio"]
        - usages.get(resource_class, 0)
        for resource_class, item in inventories.items()
    }
    return left.get("VCPU", 0) + left.get("PCPU", 0), left.get("MEMORY_MB", 0)
