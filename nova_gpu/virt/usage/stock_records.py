# SPDX-License-Identifier: Apache-2.0
"""Stock Nova's records of PCI functions that an instance has by nova-gpu, and of the host.

A takeover of instances, and the way back, change records of several kinds one after the other.
One that was interrupted leaves stock Nova's record of a function (a row of ``pci_devices``) next to
``instance.resources``, and without the request by which stock Nova gave it: Nova fails on such a
row (``Instance.get_pci_devices``), and no other program takes it for its own. A function has one
owner, so the row is what is left.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Collection, Iterable

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.objects import fields
from nova.pci import manager as pci_manager
from oslo_log import log as logging

from nova_gpu.core import boundary, device, exception, names
from nova_gpu.core.device import Device
from nova_gpu.core.model import PciAddress
from nova_gpu.virt.usage import records

LOG = logging.getLogger(__name__)

TAKEN = (fields.PciDeviceStatus.ALLOCATED, fields.PciDeviceStatus.CLAIMED)
# What Nova writes into the requests of an instance: the providers that it has chosen
NOTES = ("rp_uuids",)


def devices(resources: Iterable[objects.Resource] | None) -> list[Device]:
    """Return the cards and vGPUs by nova-gpu that *resources* have."""
    parsed = []
    for resource in resources or ():
        # Other resources, such as persistent memory, have other identifiers.
        with contextlib.suppress(exception.InvalidValue):
            parsed.append(device.parse(resource.identifier))
    return parsed


def is_of(row: objects.PciDevice, own: Collection[Device]) -> bool:
    """Return whether *row* is of a function of the GPUs *own*: of a whole card, or of a vGPU."""
    try:
        address = PciAddress.parse(row.address)
    except exception.InvalidPciAddress:  # of 8 digits, which no GPU has
        return False
    whole = {(card.domain, card.bus, card.slot) for card in device.cards(own)}
    parents = {slot.parent for slot in device.slots(own)}
    return address in parents or (address.domain, address.bus, address.slot) in whole


def is_left(row: objects.PciDevice, instance: objects.Instance) -> bool:
    """Return whether *row* is of a GPU of the instance, and by none of its requests.

    In a move, and after a failed one, an instance may have the resources of another host, and here
    another device at such an address, by an alias or a port.
    """
    move = instance.migration_context
    lists = [instance.pci_requests, move.new_pci_requests if move else None]
    requests = {request.request_id for own in lists if own for request in own.requests}
    return row.request_id not in requests and is_of(row, devices(instance.resources))


def end(host: str, nodename: str) -> None:
    """Remove the rows that an interrupted takeover, or way back, has left; raise nothing.

    Call it when the service starts, before Nova's PCI tracker reads the rows.
    """
    try:
        with boundary.crossed():
            _end(nova_context.get_admin_context(), host, nodename)
    except boundary.Failure as error:
        LOG.error(
            "Cannot remove what an interrupted nova-gpu adopt or leave has left: %s. Restart "
            "nova-compute before an instance with GPUs is started or moved",
            error,
        )


def was_ours(host: str, nodename: str) -> bool:
    """Return whether nova-compute had nova-gpu's driver when it last reported the host.

    The guests of another driver leave the proofs of cleaning as they are. Return ``False`` also if
    that is unknown.
    """
    try:
        with boundary.crossed():
            context = nova_context.get_admin_context()
            node = objects.ComputeNode.get_by_host_and_nodename(context, host, nodename)
            return names.STATS in (node.stats or {})
    except boundary.Failure:
        return False


def _end(context: nova_context.RequestContext, host: str, nodename: str) -> None:
    try:
        node = objects.ComputeNode.get_by_host_and_nodename(context, host, nodename)
    except nova_exception.ComputeHostNotFound:
        return
    rows = objects.PciDeviceList.get_by_compute_node(context, node.id)
    taken = {row.instance_uuid for row in rows if row.status in TAKEN}
    asking = []
    attributes = ["flavor", "resources", "pci_requests", "migration_context"]
    for instance in objects.InstanceList.get_by_host(context, host, expected_attrs=attributes):
        flavor_request = records.request_of(instance)
        asks = flavor_request.asks_for_gpus or flavor_request.asks_for_vgpus
        # What another host has given may stay in the resources of one with an alias.
        own = devices(instance.resources) if asks else []
        if own and instance.uuid in taken:
            remove(context, node, instance.uuid, functools.partial(is_left, instance=instance))
        if own or instance.uuid in taken or flavor_request.asks_for_vgpus:
            asking.append(instance)
    try:
        with boundary.crossed():
            for instance in asking:
                _agree(context, instance)
    except boundary.Failure as error:
        # A cell's conductor may lack the API's database, in which these requests are.
        LOG.info(
            "Cannot compare the instances' flavors with the requests by which Nova schedules them: "
            "%s. If nova-gpu adopt or leave was interrupted on this host, set "
            "[api_database]connection for the conductor of its cell and restart nova-compute",
            error.first_line,
        )


def _agree(context: nova_context.RequestContext, instance: objects.Instance) -> None:
    """Let the request by which Nova schedules the instance ask as its flavor does.

    A takeover, and the way back, change the request first. The flavor of a resize has another id.
    """
    try:
        spec = objects.RequestSpec.get_by_instance_uuid(context, instance.uuid)
    except nova_exception.RequestSpecNotFound:
        return
    flavor = instance.flavor
    asks = _is_ours(spec.flavor), _is_ours(flavor)
    if spec.flavor.flavorid == flavor.flavorid and asks[0] != asks[1]:
        respecify(spec, flavor, instance.pci_requests)


def _is_ours(flavor: objects.Flavor) -> bool:
    specs = flavor.extra_specs if flavor.obj_attr_is_set("extra_specs") else {}
    return bool(specs.keys() & {names.GPUS, names.VGPUS})


def respecify(
    spec: objects.RequestSpec, flavor: objects.Flavor, requests: objects.InstancePCIRequests | None
) -> None:
    """Write a flavor and requests into *spec*, by which Nova schedules an instance.

    The providers that an instance's own requests name are left out: Placement chooses others.
    """
    spec.flavor = flavor
    if requests is not None:
        spec.pci_requests = copy.deepcopy(requests)
        for item in (item for request in spec.pci_requests.requests for item in request.spec):
            for note in NOTES:
                item.pop(note, None)
    spec.save()


def remove(
    context: nova_context.RequestContext,
    node: objects.ComputeNode,
    instance_uuid: str,
    is_removed: Callable[[objects.PciDevice], bool],
) -> None:
    """Remove those of the instance's rows on *node* for which *is_removed*, as Nova's tracker does.

    nova-compute's own tracker must not have read them.
    """
    tracker = pci_manager.PciDevTracker(context, node)
    own = (row for row in tracker.pci_devs if row.instance_uuid == instance_uuid)
    rows = [row for row in own if row.status in TAKEN and is_removed(row)]
    for row in rows:
        tracker.free_device(row, {"uuid": instance_uuid})
    # Nova reads removed rows too when it looks for an instance's functions.
    tracker.save(context)
    for row in rows:
        row.remove()
    tracker.save(context)
