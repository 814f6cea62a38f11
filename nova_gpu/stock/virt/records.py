# SPDX-License-Identifier: Apache-2.0
"""Nova's records of a host's instances: their PCI functions, their flavors, their moves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from nova import context as nova_context
from nova import objects
from nova.objects import fields

from nova_gpu.core import device, exception
from nova_gpu.core.device import Device
from nova_gpu.core.model import PciAddress
from nova_gpu.stock.core import former
from nova_gpu.stock.core.former import Request
from nova_gpu.stock.core.holding import Instance

# What is read of an instance, and what a takeover changes
ATTRIBUTES = ["flavor", "pci_requests", "resources", "system_metadata"]
_READ = [*ATTRIBUTES, "numa_topology"]
# What Nova writes into the requests of an instance: the providers that it has chosen
NOTES = ("rp_uuids",)
TAKEN = (fields.PciDeviceStatus.ALLOCATED, fields.PciDeviceStatus.CLAIMED)


def read(context: nova_context.RequestContext, host: str, nodename: str) -> list[Instance]:
    """Return the instances of the compute node, and others that have to do with it.

    These are on another host, and move from or to this one, or Nova's database still counts PCI
    functions here for them.
    """
    node = objects.ComputeNode.get_by_host_and_nodename(context, host, nodename)
    rows: dict[str, list[objects.PciDevice]] = {}
    for row in objects.PciDeviceList.get_by_compute_node(context, node.id):
        if row.status in TAKEN and row.instance_uuid:
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
        Instance(
            instance.uuid,
            instance.flavor.name,
            dict(instance.flavor.extra_specs),
            instance.vm_state,
            instance.task_state,
            migrations.get(instance.uuid),
            dict(_functions(instance, rows.get(instance.uuid, ()))),
            device.cards(_devices(instance)),
            device.slots(_devices(instance)),
            any(is_replaced(request, instance) for request in _requests(instance)),
            None if instance.host == host else instance.host,
            _by_alias(instance),
            former.of_metadata(instance.system_metadata),
            bool(instance.numa_topology),
        )
        for instance in (*here, *_by_uuid(context, elsewhere))
    ]


def _by_uuid(context: nova_context.RequestContext, uuids: set[str]) -> Iterator[objects.Instance]:
    if uuids:
        filters = {"uuid": sorted(uuids), "deleted": False}
        yield from objects.InstanceList.get_by_filters(context, filters, expected_attrs=_READ)


def is_replaced(request: objects.InstancePCIRequest, instance: objects.Instance) -> bool:
    """Return whether nova-gpu gives the instance what this request of an alias has asked for.

    A takeover marks such a request until Nova's records of its functions are removed: the instance
    itself is its requester, and it has no alias. So Nova finds the request of each function
    (``Instance.get_pci_devices``), and renders none.
    """
    return request.alias_name is None and request.requester_id == instance.uuid


def _requests(instance: objects.Instance) -> Sequence[objects.InstancePCIRequest]:
    return instance.pci_requests.requests if instance.pci_requests else ()


def _by_alias(instance: objects.Instance) -> dict[str, Request]:
    """Return what the instance has asked Nova for by each alias, without Nova's own notes."""
    return {
        request.alias_name: Request(
            tuple(
                {key: value for key, value in spec.items() if key not in NOTES}
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


def _devices(instance: objects.Instance) -> list[Device]:
    """Return the cards and vGPUs that the instance has by nova-gpu."""
    devices = []
    for resource in instance.resources or ():
        # Other resources, such as persistent memory, have other identifiers.
        with contextlib.suppress(exception.InvalidValue):
            devices.append(device.parse(resource.identifier))
    return devices
