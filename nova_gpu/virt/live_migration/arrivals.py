# SPDX-License-Identifier: Apache-2.0
"""The destination's steps of a live migration of a guest with vGPUs, in the order of Nova's calls.

*data* is Nova's ``LibvirtLiveMigrateData``, which both hosts read and change. The steps do nothing
for instances without vGPUs.
"""

from __future__ import annotations

from typing import Any

from nova import objects

from nova_gpu.core import exception
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.virt.lifecycle.start import Kind
from nova_gpu.virt.live_migration import compatibility, migrate_data
from nova_gpu.virt.live_migration.migrate_data import Moves


def offered(host: Moves, instance: objects.Instance, data: Any) -> Any:
    """Tell the source in *data* that this host takes running guests with vGPUs; return *data*."""
    if host.are_moved(instance):
        data.target_mdevs = {}
        data.dst_supports_numa_live_migration = True
    return data


def claimed(host: Moves, instance: objects.Instance, data: Any, claim: Any) -> Any:
    """Choose and check the vGPUs that Nova's *claim* took here; return *data*.

    :raises nova.exception.MigrationPreCheckError: if they do not match those at the source; the
        claim is then aborted
    """
    if not host.are_moved(instance):
        return data
    types = {Slot.parse(text): what for text, what in data.source_mdev_types.items()}
    with instance.mutated_migration_context():
        # The cells stay, because Nova has told the source where they are.
        host.starts.exchange.make(instance, moves_cells=False)
        reason = _mismatch(host, instance, types)
    if not claim.claimed_numa_topology:
        # Nova's pre_live_migration fails on a dst_numa_info without CPU pins.
        delattr(data, "dst_numa_info")
    # Otherwise Nova looks for mediated devices of its own for these types.
    data.source_mdev_types = {}
    if reason:
        claim.abort()
        raise migrate_data.refused(f"on {host.nodename()}: {reason}")
    return data


def _mismatch(host: Moves, instance: objects.Instance, types: dict[Slot, str]) -> str | None:
    host.assigned.ask_for_providers()
    new = instance.migration_context.new_resources
    try:
        holdings = host.assigned.vgpu_inventory.held(new)
        descriptions = host.described(holdings)
    except exception.DeviceUnavailable as error:
        return error.user_text
    if len(descriptions) != len(types) or len(migrate_data.recorded(new)) != len(types):
        return f"the guest has {len(types)} vGPUs, and {len(descriptions)} were claimed"
    for old, place in migrate_data.pairs(instance):
        if reason := compatibility.not_alike(types.get(old), descriptions[place]):
            return reason
        stateless = host.movable(place).stateless(place, is_running=False)
        if reason := stateless or host.unmovable(place):
            return reason
    return host.starts.exchange.remote(instance, {host.assigned.vgpu_inventory: holdings})


def mapped(host: Moves, instance: objects.Instance, data: Any) -> Any:
    """Write into *data* which vGPU here replaces each of the source's; return *data*.

    Nova writes these vGPUs into the guest's XML.

    :raises nova.exception.MigrationPreCheckError: if Nova has claimed no vGPUs here
    """
    if not host.are_moved(instance):
        return data
    if "src_supports_numa_live_migration" not in data:
        raise migrate_data.refused(
            "the RPC between the hosts is too old for a claim of vGPUs; check "
            "[upgrade_levels]compute of both"
        )
    for old, new in migrate_data.pairs(instance):
        host.movable(new).moved(data, instance.uuid, old, new)
    return data


def prepare(host: Moves, instance: objects.Instance) -> None:
    """Make the claimed vGPUs, as before a start, and reserve them until the guest has arrived.

    :raises nova.exception.ComputeResourcesUnavailable: if one of them cannot be made
    """
    if not host.are_moved(instance):
        return
    slots = migrate_data.recorded(instance.migration_context.new_resources)
    with instance.mutated_migration_context(), host.starts.starting(instance, Kind.MOVE):
        host.starts.ledger.was_used(slots)
        host.starts.ledger.keep(instance.uuid, slots)
