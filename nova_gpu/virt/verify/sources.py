# SPDX-License-Identifier: Apache-2.0
"""The four sources about a host's GPUs as plain values, and kinds of contradictions.

Sysfs says which cards there are and who drives them, libvirt which guest names which, Nova's
database which instance has which, and Placement how many each instance has.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from nova_gpu.core import names
from nova_gpu.core.device import Device
from nova_gpu.core.model import PciAddress
from nova_gpu.core.vgpu.vgpu import Slot

# Whole ones, and vGPUs.
Cards = frozenset[Device]


class Kind(enum.StrEnum):
    """Kinds of contradictions; the documentation has a paragraph for each."""

    SHARED_BY_DOMAINS = "shared-by-domains"
    SHARED_BY_INSTANCES = "shared-by-instances"
    FOREIGN_DOMAIN = "foreign-domain"
    NO_DOMAIN = "no-domain"
    REACHES_OTHERS = "reaches-others"
    DOMAIN_DIFFERS = "domain-differs"
    FLAVOR_DIFFERS = "flavor-differs"
    CARD_MISSING = "card-missing"
    CARD_UNFIT = "card-unfit"
    VGPU_MISSING = "vgpu-missing"
    VGPU_LEFT = "vgpu-left"
    ALLOCATION_DIFFERS = "allocation-differs"
    ALLOCATION_ELSEWHERE = "allocation-elsewhere"
    ALLOCATION_LEFT = "allocation-left"
    ALLOCATION_UNKNOWN = "allocation-unknown"
    INVENTORY_SHORT = "inventory-short"
    INVENTORY_EXCEEDS = "inventory-exceeds"


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """``subject``: the uuid of who has it, or the card's address, or the provider's name.

    ``safe``: ``nova-gpu verify --repair`` does it; else ``remedy`` is the operator's to judge.
    """

    kind: Kind
    subject: str
    text: str
    remedy: str
    safe: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Guest:
    """A domain, and the cards whose nodes or functions it names.

    ``reached`` and ``opened`` mean the same as in :class:`nova_gpu.virt.usage.domains.Named`.
    """

    running: bool
    cards: Cards
    reached: Cards = frozenset()
    opened: Cards = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """An instance by Nova's database.

    ``counted``: (provider_uuid, card) of what the database counts for it on this host, both
    sides of a move. ``settled``: no task and no move is under way. ``aliased``: it has PCI devices
    by an alias, too, which are not counted here.
    """

    active: bool
    settled: bool
    flavor_count: int
    counted: frozenset[tuple[str, Device]]
    aliased: bool = False

    @property
    def cards(self) -> Cards:
        return frozenset(card for _, card in self.counted)


class Holder(enum.Enum):
    """A consumer with an allocation that is no instance of this host."""

    DELETED = "an instance that is deleted"
    ENDED_MOVE = "a migration that has ended"
    ELSEWHERE = "an instance of another host"
    UNKNOWN = "no consumer that Nova knows"
    ON_ITS_WAY = "an instance or migration that is on its way"


@dataclasses.dataclass(frozen=True, slots=True)
class Provider:
    """One group in Placement.

    ``allocated``: GPUs by consumer. ``cards``: those of its product here, ``fit``: those of them
    that can be given to a guest. Of a group of vGPUs, which is one where the ``resource_class``
    says so, there are neither.
    """

    name: str
    total: int
    reserved: int
    allocated: Mapping[str, int]
    cards: Cards
    fit: Cards
    resource_class: str = names.RESOURCE_CLASS


@dataclasses.dataclass(frozen=True, slots=True)
class HostState:
    """The state of a host by the four. ``None``: it did not answer, for the reason in ``unread``.

    ``unfit``: why a card cannot be given to a guest or is with another driver than its guest needs.
    ``guests`` and ``instances`` by uuid, ``providers`` by uuid. ``holders``: consumers of GPUs here
    that are no instance of this host. ``functions``: those of cards that are given in parts.
    ``made``: the vGPUs that there are, by the uuid of whose they are. ``vgpus_free``: how many more
    there can be of each group, by its provider's name; nothing where that is not known.
    """

    cards: Cards | None
    unfit: Mapping[Device, str]
    guests: Mapping[str, Guest] | None
    instances: Mapping[str, Instance] | None
    returning: frozenset[str]
    providers: Mapping[str, Provider] | None
    holders: Mapping[str, Holder]
    unread: tuple[str, ...] = ()
    functions: frozenset[PciAddress] = frozenset()
    made: Mapping[str, frozenset[Slot]] | None = None
    vgpus_free: Mapping[str, int] = dataclasses.field(default_factory=dict)
