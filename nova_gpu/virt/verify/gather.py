# SPDX-License-Identifier: Apache-2.0
"""Reader of the four sources about a host's GPUs: sysfs, libvirt, Nova's database and Placement.

As in nova-compute, the database is read through the conductor, and Placement with Nova's client.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from nova import context as nova_context
from nova import exception as nova_exception
from nova import objects
from nova.compute import vm_states
from nova.virt import hardware
from nova.virt.libvirt import host as libvirt_host

from nova_gpu.conf import CONF
from nova_gpu.core import boundary, device, exception, names
from nova_gpu.core.availability import Reasons
from nova_gpu.core.device import Device
from nova_gpu.core.flavor import request
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.topology import affinity
from nova_gpu.core.topology.affinity import Policy
from nova_gpu.virt.inventory import discovery
from nova_gpu.virt.usage import allocations, records
from nova_gpu.virt.verify import abandoned_moves, gather_host
from nova_gpu.virt.verify.sources import Holder, HostState, Instance

_T = TypeVar("_T")
# The options that tell where each source is, for messages
_OPTIONS = {
    "sysfs": "[gpu]sysfs_root",
    "libvirt": "[libvirt]virt_type and connection_uri",
    "Nova's database": "nova-conductor, which is asked for it, and [DEFAULT]transport_url",
    "Placement": "the options of [placement]",
}
_SETTLED = (vm_states.ACTIVE, vm_states.STOPPED)


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """The objects by which the four sources are read.

    ``placement``: Nova's report client. ``unavailable``: return those of the cards that guests
    cannot get, with the reasons. ``ask``: call a function that reads one source, and return its
    answer; it may stop waiting, and raise any exception.
    """

    host: discovery.Discovery
    libvirt: libvirt_host.Host
    placement: Any
    unavailable: Callable[[Iterable[GPU]], Mapping[PciAddress, Reasons]]
    ask: Callable[[Callable[[], Any]], Any] = lambda read: read()


class Questions:
    """The questions of one comparison, and those that were not answered.

    :param within: call a function within a deadline
    """

    def __init__(self, within: Callable[[Callable[[], Any]], Any]) -> None:
        self._within = within
        self._failures: dict[str, None] = {}

    def __call__(self, who: str, read: Callable[[], _T]) -> _T | None:
        """Return the answer of *read*, ``None`` if it fails.

        :param who: the source that is asked, a key of the options' table
        """
        try:
            with boundary.crossed():
                answer: _T = self._within(read)
        except boundary.Failure as error:
            self._failures[f"{who}: {error.first_line}; see {_OPTIONS[who]}"] = None
            return None
        return answer

    @property
    def unread(self) -> tuple[str, ...]:
        """Sentences about the questions that were not answered."""
        return tuple(self._failures)


def gather(sources: Sources) -> HostState:
    """Read the four sources, and return what they have of the host's GPUs; raise nothing."""
    ask = Questions(sources.ask)
    context = nova_context.get_admin_context()
    host = sources.host
    cards = ask("sysfs", lambda: gather_host.read(host, sources.unavailable))
    whole = cards.whole if cards is not None else {}
    guests, nodename = None, None
    if cards is not None:
        guests = ask("libvirt", lambda: gather_host.guests(host, sources.libvirt, cards))
        if guests is not None:
            nodename = ask("libvirt", sources.libvirt.get_hostname)
    if nodename is None:
        nodename = ask("Nova's database", lambda: _nodename(context))
    answer = providers = on_node = None
    if nodename is not None:
        node, mode = nodename, host.delivery.mode
        # Before the database: a consumer that is created in between is then looked up there.
        providers = ask(
            "Placement",
            lambda: gather_host.read_providers(sources.placement, context, node, mode, whole),
        )
        with_gpus = [uuid for uuid, guest in (guests or {}).items() if guest.cards]
        if providers is not None:  # else Placement does not answer
            on_node = ask(
                "Placement", lambda: gather_host.node_consumers(sources.placement, context, node)
            )
        answer = ask("Nova's database", lambda: _instances(context, node, with_gpus, on_node))
    instances, returning = answer or (None, frozenset())
    holders = None
    if instances is not None:
        consumers = {uuid for provider in (providers or {}).values() for uuid in provider.allocated}
        others = consumers - instances.keys()
        holders = ask("Nova's database", lambda: _holders(others))
    made, vgpus_free = None, {}
    if cards is not None and guests is not None and instances is not None:
        owners = {uuid: guest.cards for uuid, guest in guests.items()}
        for uuid, instance in instances.items():
            owners[uuid] = owners.get(uuid, frozenset()) | instance.cards
        made = ask("sysfs", lambda: gather_host.made(host, cards.parts, owners))
        if made is not None and nodename is not None:
            there_are = frozenset().union(*made.values())
            taken = there_are.union(*owners.values())
            free = gather_host.free(cards.shared, cards.parts, taken, there_are)
            vgpus_free = {names.provider_name(nodename, key): free[key] for key in free}
    return HostState(
        cards=None if cards is None else frozenset(whole),
        unfit=gather_host.unfit(host, whole),
        guests=guests,
        instances=instances,
        returning=returning,
        providers=providers,
        holders=holders or {},
        unread=ask.unread,
        functions=frozenset() if cards is None else cards.functions,
        made=made,
        vgpus_free=vgpus_free,
        nodes={
            address: node
            for address, card in whole.items()
            if (node := card.gpu.numa_node) is not None
        },
    )


def _nodename(context: nova_context.RequestContext) -> str:
    """Return the name of the host's compute node from the database, if libvirt does not answer."""
    (node,) = objects.ComputeNodeList.get_all_by_host(context, CONF.host)
    return str(node.hypervisor_hostname)


def _instances(
    context: nova_context.RequestContext,
    nodename: str,
    guests: Collection[str],
    on_node: Collection[str] | None,
) -> tuple[dict[str, Instance], frozenset[str]]:
    """Return the host's instances by uuid, and the uuids of instances that a revert brings back.

    :param guests: the uuids of the domains here that have GPUs
    :param on_node: the consumers with an allocation from the compute node, ``None`` if unknown
    """
    counted = records.read(context, CONF.host, nodename, guests)
    migrations = objects.MigrationList.get_in_progress_and_error(context, CONF.host, nodename)
    moving = {migration.instance_uuid for migration in migrations if migration.status != "error"}
    listed = objects.InstanceList.get_by_host(
        context, CONF.host, expected_attrs=["flavor", "system_metadata"]
    )
    by_uuid = {instance.uuid: instance for instance in listed}
    instances = {}
    for uuid, identifiers in counted.counted.items():
        instance = by_uuid.get(uuid)
        state = instance.vm_state if instance else None
        flavor = records.request_of(instance) if instance else request.of({})
        devices = [(provider, device.parse(text)) for provider, text in identifiers]
        is_released = state == vm_states.STOPPED and not devices
        is_here = on_node is not None and uuid in counted.here
        lacks = is_here and not counted.consumers(uuid) & set(on_node or ())
        wants = devices or flavor.asks_for_gpus or flavor.asks_for_vgpus
        instances[uuid] = Instance(
            active=state == vm_states.ACTIVE,
            settled=state in _SETTLED and uuid not in moving | counted.busy,
            flavor_count=0 if is_released else asked_of(flavor, [d for _, d in devices]),
            counted=frozenset(devices),
            aliased=names.PCI_ALIAS in flavor.extra_specs,
            idle=uuid in counted.idle,
            lacks=allocations.node_part(instance) if lacks and wants else {},
            near=instance is not None and _is_near(instance),
        )
    return instances, counted.returning


def _is_near(instance: objects.Instance) -> bool:
    """Return whether a GPU of the instance must not be on another known node than its cells."""
    try:
        stated = hardware.get_pci_numa_policy_constraint(instance.flavor, instance.image_meta)
    except nova_exception.Invalid:  # as the API, which starts no such instance
        return False
    policy = affinity.policy(stated, CONF.gpu.pci_numa_affinity_policy)
    return policy in (Policy.REQUIRED, Policy.LEGACY)


def asked_of(flavor_request: FlavorRequest, held: Collection[Device]) -> int:
    """Return the number of GPUs and vGPUs that the flavor requests.

    If the flavor is invalid, return the number of devices in *held*, which the instance has: the
    API and the scheduler refuse such a flavor. If it requests vGPUs as Nova's ``resources:VGPU``
    only, count the vGPUs in *held*.
    """
    try:
        count = sum(request_.count for request_ in flavor_request.requests)
    except exception.InvalidExtraSpec:
        return len(held)
    if flavor_request.asks_for_vgpus and flavor_request.vgpus is None:
        count += len(device.slots(held))
    return count


def _holders(consumers: Iterable[str]) -> dict[str, Holder]:
    context = nova_context.get_admin_context(read_deleted="yes")
    return {consumer: _holder(context, consumer) for consumer in consumers}


def _holder(context: nova_context.RequestContext, consumer: str) -> Holder:
    try:
        instance = objects.Instance.get_by_uuid(context, consumer)
    except nova_exception.InstanceNotFound:
        pass
    else:
        if instance.deleted:
            return Holder.DELETED
        here = instance.host in (None, CONF.host)
        return Holder.ON_ITS_WAY if here or instance.task_state else Holder.ELSEWHERE
    if abandoned_moves.ended(context, consumer):
        return Holder.ENDED_MOVE
    try:
        objects.Migration.get_by_uuid(context, consumer)
    except nova_exception.MigrationNotFound:
        return Holder.UNKNOWN
    return Holder.ON_ITS_WAY
