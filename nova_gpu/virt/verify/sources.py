# SPDX-License-Identifier: Apache-2.0
"""The answers of the four sources about a host's GPUs, and the kinds of contradictions in them.

Sysfs lists the cards and their drivers, libvirt the GPUs that each domain names, Nova's database
the GPUs of each instance, and Placement the number of GPUs of each consumer.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from nova_gpu.core import names
from nova_gpu.core.device import Device
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.virt.usage.allocations import Allocations
from nova_gpu.virt.usage.domains import DomainDevices
from nova_gpu.virt.usage.records import Records

# Whole cards, and slots of vGPUs
Devices = frozenset[Device]


class Conflict(enum.StrEnum):
    """Kinds of contradictions between the sources; ``nova-gpu verify`` prints them."""

    SHARED_BY_DOMAINS = "shared-by-domains"
    SHARED_BY_INSTANCES = "shared-by-instances"
    FOREIGN_DOMAIN = "foreign-domain"
    NO_DOMAIN = "no-domain"
    REACHES_OTHERS = "reaches-others"
    DOMAIN_DIFFERS = "domain-differs"
    FLAVOR_DIFFERS = "flavor-differs"
    CARD_MISSING = "card-missing"
    CARD_UNFIT = "card-unfit"
    CARD_REMOTE = "card-remote"
    VGPU_MISSING = "vgpu-missing"
    VGPU_LEFT = "vgpu-left"
    ALLOCATION_DIFFERS = "allocation-differs"
    NODE_PART_MISSING = "node-part-missing"
    ALLOCATION_ELSEWHERE = "allocation-elsewhere"
    ALLOCATION_LEFT = "allocation-left"
    ALLOCATION_UNKNOWN = "allocation-unknown"
    INVENTORY_SHORT = "inventory-short"
    INVENTORY_EXCEEDS = "inventory-exceeds"


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """One contradiction between the sources.

    ``subject``: the uuid of the domain, instance or migration, or the card's address, or the
    provider's name. ``safe``: whether ``nova-gpu verify --repair`` repairs it; else the operator
    decides whether to do what ``remedy`` says.
    """

    kind: Conflict
    subject: str
    text: str
    remedy: str
    safe: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What an instance's flavor and image request, for an instance of this host.

    ``active``: the instance is ACTIVE. ``count``: the number of GPUs. ``aliased``: it also has PCI
    devices by an alias, which its GPUs in the database do not include. ``near``: whether its GPUs
    must be on the NUMA nodes of its cells.
    """

    active: bool = False
    count: int = 0
    aliased: bool = False
    near: bool = False


class Consumer(enum.Enum):
    """Kinds of consumers with GPUs of this host in Placement that are no instances of this host."""

    DELETED = "an instance that is deleted"
    ENDED_MOVE = "a migration that has ended"
    ELSEWHERE = "an instance of another host"
    UNKNOWN = "no consumer that Nova knows"
    ON_ITS_WAY = "an instance or migration that is on its way"


@dataclasses.dataclass(frozen=True, slots=True)
class GroupProvider:
    """The provider of one group in Placement.

    ``fit``: the host's whole cards in the group that guests can use, none if the ``resource_class``
    is the one of vGPUs.
    """

    name: str
    total: int
    reserved: int
    fit: Devices
    resource_class: str = names.RESOURCE_CLASS


@dataclasses.dataclass(frozen=True, slots=True)
class HostState:
    """The state of a host's GPUs by the four sources.

    A field is ``None`` if its source did not answer; ``unread`` has the reason.

    ``cards``: the cards that guests get whole. ``unfit``: why no guest can use a card, or that its
    driver is the wrong one. ``guests``, ``wanted``, ``providers``: by uuid. ``wanted`` has all
    instances for which ``records`` count something. ``allocations``: empty without ``providers``.
    ``holders``: the kind of each consumer of GPUs that is no instance of this host, by uuid.
    ``functions``: the PCI functions of cards that guests get parts of. ``made``: the vGPUs that
    exist, by the uuid of the instance that they are made for. ``vgpus_free``: how many more vGPUs
    each group has room for, by its provider's name, without groups for which that is unknown.
    ``nodes``: the NUMA node of each of ``cards``, where it is known.
    """

    cards: Devices | None
    unfit: Mapping[Device, str]
    guests: Mapping[str, DomainDevices] | None
    records: Records | None
    wanted: Mapping[str, Wanted]
    providers: Mapping[str, GroupProvider] | None
    allocations: Allocations
    holders: Mapping[str, Consumer]
    unread: tuple[str, ...] = ()
    functions: frozenset[PciAddress] = frozenset()
    made: Mapping[str, frozenset[Slot]] | None = None
    vgpus_free: Mapping[str, int] = dataclasses.field(default_factory=dict)
    nodes: Mapping[Device, int] = dataclasses.field(default_factory=dict)

    def held(self) -> dict[str, Devices]:
        """Return the devices of each instance by the database, none if that did not answer."""
        return {uuid: self.records.devices(uuid) for uuid in self.wanted} if self.records else {}

    def allocated(self, provider_uuid: str) -> dict[str, int]:
        """Return the number of the group's devices that each consumer has by Placement."""
        name = (self.providers or {})[provider_uuid].resource_class
        consumers = self.allocations.by_provider.get(provider_uuid, {})
        return {uuid: amounts[name] for uuid, amounts in consumers.items() if name in amounts}
