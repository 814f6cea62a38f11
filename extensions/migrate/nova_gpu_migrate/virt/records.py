# SPDX-License-Identifier: Apache-2.0
"""Nova's records of a host's instances: their PCI functions, their flavors, their moves."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.virt import hardware

from nova_gpu.conf import CONF
from nova_gpu.core import boundary, device, exception
from nova_gpu.core.device import Device
from nova_gpu.core.model import PciAddress
from nova_gpu.core.topology import affinity
from nova_gpu.virt.usage import stock_records
from nova_gpu_migrate.core import former
from nova_gpu_migrate.core.former import AliasRequest
from nova_gpu_migrate.core.stock_holding import SHELVED, NotTakenOver, Obstacle, StockInstance

# What is read of an instance, and what a takeover changes
ATTRIBUTES = ["flavor", "pci_requests", "resources", "system_metadata"]
_READ = [*ATTRIBUTES, "migration_context"]


def read(context: nova_context.RequestContext, host: str, nodename: str) -> list[StockInstance]:
    """Return the instances of the compute node, and others that have to do with it.

    These are on another host, and move from or to this one, or Nova's database still counts PCI
    functions here for them.
    """
    node = objects.ComputeNode.get_by_host_and_nodename(context, host, nodename)
    rows: dict[str, list[objects.PciDevice]] = {}
    for row in objects.PciDeviceList.get_by_compute_node(context, node.id):
        if row.status in stock_records.TAKEN and row.instance_uuid:
            rows.setdefault(row.instance_uuid, []).append(row)
    migrations = {
        migration.instance_uuid: migration.status
        for migration in objects.MigrationList.get_in_progress_by_host_and_node(
            context, host, nodename
        )
    }
    here = objects.InstanceList.get_by_host(context, host, expected_attrs=_READ)
    elsewhere = (rows.keys() | migrations.keys()) - {instance.uuid for instance in here}
    return [
        dataclasses.replace(
            _instance(instance),
            migration=migrations.get(instance.uuid),
            recorded=dict(_functions(instance, rows.get(instance.uuid, ()))),
            counted=device.cards(stock_records.devices(instance.resources)),
            slots=device.slots(stock_records.devices(instance.resources)),
            elsewhere=None if instance.host == host else instance.host,
            moved=_of_move(instance) if instance.uuid in migrations else frozenset(),
        )
        for instance in (*here, *_by_uuid(context, elsewhere))
    ]


def shelved(context: nova_context.RequestContext) -> list[StockInstance]:
    """Return the instances of the cell that no host has, since they are shelved."""
    filters = {"vm_state": SHELVED, "deleted": False}
    own = objects.InstanceList.get_by_filters(context, filters, expected_attrs=ATTRIBUTES)
    return list(map(_instance, own))


def _instance(instance: objects.Instance) -> StockInstance:
    """Return what an instance has whether it is on a host or not."""
    stated, default = _policies(instance)
    return StockInstance(
        instance.uuid,
        instance.flavor.name,
        dict(instance.flavor.extra_specs),
        instance.vm_state,
        instance.task_state,
        requests=_by_alias(instance),
        former=former.of_metadata(instance.system_metadata),
        stated_policy=stated,
        default_policy=default,
    )


def _policies(instance: objects.Instance) -> tuple[str | None, str | None]:
    """Return the stated and the default policy of a guest with cells, ``None`` twice without."""
    of_instance = instance.flavor, instance.image_meta
    with contextlib.suppress(nova_exception.NovaException):  # Nova's API refuses it today
        if hardware.numa_get_constraints(*of_instance):
            stated = hardware.get_pci_numa_policy_constraint(*of_instance)
            return stated, affinity.policy(None, CONF.gpu.pci_numa_affinity_policy)
    return None, None


def _by_uuid(context: nova_context.RequestContext, uuids: set[str]) -> Iterator[objects.Instance]:
    if uuids:
        filters = {"uuid": sorted(uuids), "deleted": False}
        yield from objects.InstanceList.get_by_filters(context, filters, expected_attrs=_READ)


def _requests(instance: objects.Instance) -> Sequence[objects.InstancePCIRequest]:
    return instance.pci_requests.requests if instance.pci_requests else ()


def _by_alias(instance: objects.Instance) -> dict[str, AliasRequest]:
    """Return what the instance has asked Nova for by each alias, without Nova's own notes."""
    return {
        request.alias_name: AliasRequest(
            tuple(
                {key: value for key, value in spec.items() if key not in stock_records.NOTES}
                for spec in request.spec
            ),
            request.numa_policy if "numa_policy" in request else None,
        )
        for request in _requests(instance)
        if request.alias_name
    }


def _functions(
    instance: objects.Instance, rows: Iterable[objects.PciDevice]
) -> Iterator[tuple[PciAddress, str | None]]:
    """Yield the functions that *rows* count for the instance, each with its alias."""
    aliases = {request.request_id: request.alias_name for request in _requests(instance)}
    for row in rows:
        # libvirt has reported these addresses, which no guest can write.
        with contextlib.suppress(exception.InvalidPciAddress):
            alias = aliases.get(row.request_id) if row.request_id else None
            yield PciAddress.parse(row.address), alias


def _of_move(instance: objects.Instance) -> frozenset[Device]:
    """Return the cards and vGPUs by nova-gpu that a move takes the instance from, or to."""
    if (move := instance.migration_context) is None:
        return frozenset()
    return frozenset(
        [*stock_records.devices(move.old_resources), *stock_records.devices(move.new_resources)]
    )


def request_spec(context: nova_context.RequestContext, uuid: str) -> objects.RequestSpec | None:
    """Return the request by which Nova schedules the instance.

    Return ``None`` if there is none, as of instances from before Nova kept them.

    :raises NotTakenOver: if the conductor that this host asks does not have them. They are in the
        API's database, which a cell's conductor may lack.
    """
    try:
        with boundary.crossed(nova_exception.RequestSpecNotFound):
            return objects.RequestSpec.get_by_instance_uuid(context, uuid)
    except nova_exception.RequestSpecNotFound:
        return None
    except boundary.Failure as error:
        raise NotTakenOver(
            uuid,
            f"nova-conductor does not read its request spec: {error.first_line}",
            "set [api_database]connection for the conductor of this host's cell while this runs",
        ) from error


def unread(context: nova_context.RequestContext, uuid: str) -> Obstacle | None:
    """Return what is in the way of reading the instance's request, and of changing it."""
    try:
        request_spec(context, uuid)
    except NotTakenOver as error:
        return error.obstacle
    return None
