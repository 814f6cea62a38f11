# SPDX-License-Identifier: Apache-2.0
"""Hosts with GPUs as nova-scheduler has them in memory, and the requests that are put to them."""

from __future__ import annotations

import datetime
import json
import random
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence

from nova import objects
from nova.objects import fields
from nova.scheduler import host_manager
from oslo_utils import uuidutils

from nova_gpu.core import model, names
from nova_gpu.core.card_sets import Module
from nova_gpu.core.flavor import query, request
from nova_gpu.virt.inventory import card_groups

objects.register_all()

GPUS = 8
PRODUCT = model.Product("10de", "2330", "H100 SXM5 80GB", "hopper")
WORDS = {"gpus": f"= {GPUS}", "gpu_arch": "s== hopper", "hypervisor": "s== KVM"}

_NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_AMOUNT = {"VCPU": 16, "MEMORY_MB": 65536, "DISK_GB": 100}
# What an operator must write for AggregateInstanceExtraSpecsFilter, which knows no words of ours.
_METADATA = {"gpus": str(GPUS), "gpu_arch": "hopper", "hypervisor": "KVM"}


def states(number: int, *, all_free: bool = False) -> Sequence[host_manager.HostState]:
    """So many hosts of 8 GPUs, made by Nova from what nova-compute has reported, and as many
    candidates of Placement: one for each.

    :param all_free: whether no GPU is in use, and not any
    """
    aggregate = objects.Aggregate(id=1, name="gpu", hosts=[], metadata=_METADATA)
    hosts = []
    for index in range(number):
        name = f"compute-{index:05}.example.org"
        free = _cards() if all_free else _free(name)
        hosts.append(_state(name, aggregate, free))
    return hosts


def report_partitions(
    host: host_manager.HostState,
    taken: Collection[Module],
    room: Callable[[Collection[Module]], Mapping[int, int]] = lambda taken: {},
) -> None:
    """What the host says after a period in which those modules of its board were somebody's

    :param room: returns how many more guests could get a set, by its size and the taken modules
    """
    modules = {card: module for module, card in enumerate(sorted(_cards()), 1)}
    free = frozenset(card for card, module in modules.items() if module not in taken)

    def of_cards(cards: Collection[model.PciAddress]) -> Mapping[int, int]:
        return room([module for card, module in modules.items() if card not in cards])

    report = card_groups.report(offer(), "QEMU", free, room=of_cards)
    host.stats = {**host.stats, names.STATS: report}


def refresh(hosts: Sequence[host_manager.HostState]) -> None:
    """Gives each its stats anew, as each request reads them from the database."""
    for host in hosts:
        host.stats = json.loads(json.dumps(host.stats))


def spec(words: Mapping[str, str] = WORDS) -> objects.RequestSpec:
    """What filters get for one instance, by default with all GPUs of a host: the request filter
    has been."""
    gpu_request = request.of(words).whole
    assert gpu_request is not None
    return request_spec(query.extra_specs(words, gpu_request, ()) or {})


def request_spec(extra_specs: Mapping[str, str]) -> objects.RequestSpec:
    """The request for one instance as the scheduler gets it."""
    flavor = objects.Flavor(
        flavorid="cg1",
        name="cg1",
        vcpus=16,
        memory_mb=65536,
        root_gb=100,
        ephemeral_gb=0,
        swap=0,
        extra_specs=dict(extra_specs),
    )
    return objects.RequestSpec(
        flavor=flavor,
        image=objects.ImageMeta(properties=objects.ImageMetaProps()),
        instance_group=None,
        instance_uuid=uuidutils.generate_uuid(),
        is_bfv=False,
        num_instances=1,
        numa_topology=None,
        pci_requests=objects.InstancePCIRequests(requests=[]),
        project_id="project",
        requested_destination=None,
        requested_resources=[],
        scheduler_hints={},
    )


def alias_spec() -> objects.RequestSpec:
    """The same cards by Nova's own alias, without PCI in Placement."""
    made = request_spec({})
    device = {"vendor_id": PRODUCT.vendor_id, "product_id": PRODUCT.product_id}
    made.pci_requests.requests = [
        objects.InstancePCIRequest(
            count=GPUS, spec=[device], request_id=uuidutils.generate_uuid(), alias_name="gpu"
        )
    ]
    return made


def _state(
    name: str, aggregate: objects.Aggregate, free: frozenset[model.PciAddress]
) -> host_manager.HostState:
    state = host_manager.HostState(name, name, None)
    state.update(_compute_node(name, free), {"host": name}, [aggregate], {})
    group = uuidutils.generate_uuid()
    state.allocation_candidates = [
        {
            "allocations": {
                state.uuid: {"resources": dict(_AMOUNT)},
                group: {"resources": {names.RESOURCE_CLASS: GPUS}},
            },
            "mappings": {"": [state.uuid, group]},
        }
    ]
    return state


def _free(name: str) -> frozenset[model.PciAddress]:
    """Any of a host's cards, the same in every run"""
    cards = _cards()
    draw = random.Random(name)
    return frozenset(draw.sample(sorted(cards), draw.randint(0, len(cards))))


def _cards() -> frozenset[model.PciAddress]:
    (group,) = offer().values()
    return frozenset(group.gpus)


def _compute_node(name: str, free: frozenset[model.PciAddress]) -> objects.ComputeNode:
    stats = {"num_instances": "0", "io_workload": "0", "failed_builds": "0"}
    return objects.ComputeNode(
        uuid=str(uuid.UUID(int=random.Random(name).getrandbits(128))),
        host=name,
        hypervisor_hostname=name,
        hypervisor_type="QEMU",
        hypervisor_version=9000000,
        vcpus=128,
        vcpus_used=0,
        memory_mb=2 << 20,
        free_ram_mb=2 << 20,
        local_gb=10_000,
        local_gb_used=0,
        free_disk_gb=10_000,
        disk_available_least=None,
        updated_at=_NOW,
        host_ip="127.0.0.1",
        cpu_info="",
        numa_topology=None,
        supported_hv_specs=[objects.HVSpec(arch="x86_64", hv_type="qemu", vm_mode="hvm")],
        stats={**stats, names.STATS: card_groups.report(offer(), "QEMU", free)},
        metrics="[]",
        cpu_allocation_ratio=1.0,
        ram_allocation_ratio=1.0,
        disk_allocation_ratio=1.0,
        pci_device_pools=objects.PciDevicePoolList(
            objects=[
                objects.PciDevicePool(
                    vendor_id=PRODUCT.vendor_id,
                    product_id=PRODUCT.product_id,
                    numa_node=None,
                    count=GPUS,
                    tags={"dev_type": fields.PciDeviceType.STANDARD},
                )
            ]
        ),
    )


def offer() -> card_groups.CardGroups:
    addresses = [model.PciAddress.parse(f"0000:{0x10 + index:02x}:00.0") for index in range(GPUS)]
    gpus = {
        address: model.GPU(address, PRODUCT, class_code=0x030200, numa_node=index // 4)
        for index, address in enumerate(addresses)
    }
    key = model.GroupKey(PRODUCT.vendor_id, PRODUCT.product_id, model.DeliveryMode.PCI)
    return {key: model.GPUGroup(key, PRODUCT, gpus, {})}
