# SPDX-License-Identifier: Apache-2.0
"""The GPUs that instances have by stock Nova: by ``[pci]alias`` or as mediated devices."""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Mapping, Sequence

from nova_gpu.core import exception, names
from nova_gpu.core.device import Device
from nova_gpu.core.model import GPU, PciAddress
from nova_gpu.core.unavailability import Reasons
from nova_gpu.core.vgpu.vgpu import DividedCard, Slot
from nova_gpu_migrate.core.former import AliasRequest, Former

SHELVED = "shelved_offloaded"


class NotTakenOver(exception.GPUError):
    """An instance that stays as it is for now, stock Nova's or nova-gpu's."""

    noun = "the instance"

    def __init__(self, uuid: str, reason: str, remedy: str) -> None:
        super().__init__(f"{self.noun} {uuid} stays as it is: {reason}; {remedy}")
        self.uuid = uuid
        self.obstacle = Obstacle(reason, remedy)


class Stranger(NotTakenOver):
    """A consumer of GPUs in Placement that is no instance of this host.

    It is a migration, or an instance that is to be built, or was deleted or moved away.
    """

    noun = "the consumer"

    def __init__(self, uuid: str) -> None:
        super().__init__(
            uuid,
            "Placement counts GPUs of this host for it, and it is no instance here; it is a "
            "migration to confirm or revert, or an instance that is being built or deleted",
            "start nova-compute with nova-gpu's driver, let that end, and run this command again",
        )


class StockDelivery(enum.StrEnum):
    """How stock Nova gave an instance its GPUs."""

    ALIAS = "alias"
    MEDIATED = "mediated device"


@dataclasses.dataclass(frozen=True, slots=True)
class Domain:
    """The devices that a libvirt domain names: PCI functions, and uuids of mediated devices.

    ``slots`` are the vGPUs that nova-gpu has written into it when its guest was started.
    """

    functions: frozenset[PciAddress] = frozenset()
    mediated: frozenset[str] = frozenset()
    slots: frozenset[Slot] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class StockMdev:
    """A mediated device: the function that it was made at, the card of that, its vGPU type."""

    parent: PciAddress
    card: PciAddress
    type_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class MdevType:
    """A type of mediated devices that stock Nova makes.

    ``addresses`` are the functions at which it does, as text; without any, all others.
    """

    type_id: str
    resource_class: str
    addresses: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class StockProvider:
    """Stock Nova's resource provider of a PCI function: of a device, or of a card that it divides.

    ``resource_classes`` are those of its inventory, ``traits`` the custom traits that it has.
    ``consumers`` are the uuids for which Placement counts it.
    """

    name: str
    resource_classes: frozenset[str] = frozenset([names.VGPU_RESOURCE_CLASS])
    traits: frozenset[str] = frozenset()
    consumers: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Alias:
    """An alias of ``[pci]alias`` that gives functions of the host's cards.

    ``cards`` are those that it gives by their first functions, and virtual functions;
    ``companions`` are other functions of cards. ``set`` are the properties by which a flavor asks
    nova-gpu for one of ``cards``, empty if they are of several products.
    """

    name: str
    cards: tuple[PciAddress, ...]
    set: Mapping[str, str]
    companions: tuple[PciAddress, ...] = ()

    @property
    def functions(self) -> frozenset[PciAddress]:
        return frozenset((*self.cards, *self.companions))


@dataclasses.dataclass(frozen=True, slots=True)
class StockInstance:
    """Nova's records of an instance on the host.

    ``recorded`` are the PCI functions that its database counts for the instance, each with the
    alias by which the instance got it, ``None`` if the record does not say. ``counted`` are the
    cards that the instance has by nova-gpu, ``slots`` its vGPUs by it. ``migration`` is the status
    of a migration of the instance that has not ended. ``elsewhere`` is the host that it is on
    instead of this one. ``moved`` are the GPUs by nova-gpu that the migration takes it from, or to.
    ``requests`` are what it has asked Nova for by each alias, ``former`` is what a takeover has
    kept of it. ``stated_policy`` is the affinity that its flavor or image states for guests with
    NUMA nodes, ``default_policy`` that of nova-gpu without; both are ``None`` if it has none.
    """

    uuid: str
    flavor: str
    extra_specs: Mapping[str, str]
    vm_state: str
    task_state: str | None = None
    migration: str | None = None
    recorded: Mapping[PciAddress, str | None] = dataclasses.field(default_factory=dict)
    counted: frozenset[PciAddress] = frozenset()
    slots: frozenset[Slot] = frozenset()
    elsewhere: str | None = None
    moved: frozenset[Device] = frozenset()
    requests: Mapping[str, AliasRequest] = dataclasses.field(default_factory=dict)
    former: Former | None = None
    stated_policy: str | None = None
    default_policy: str | None = None

    @property
    def is_shelved(self) -> bool:
        """Whether no host has it: it is changed in its records alone."""
        return self.vm_state == SHELVED


@dataclasses.dataclass(frozen=True, slots=True)
class Hardware:
    """The host's cards as nova-gpu would have them without the options of stock Nova.

    ``reasons`` are against offering cards. ``cards_by_function`` has every function of each card,
    virtual ones too. ``mediated`` are the mediated devices that exist, by uuid. ``parts`` are the
    cards that would be offered in parts. ``providers`` are stock Nova's by function.
    """

    gpus: Mapping[PciAddress, GPU]
    reasons: Mapping[PciAddress, Reasons]
    cards_by_function: Mapping[PciAddress, PciAddress]
    mediated: Mapping[str, StockMdev]
    parts: Mapping[PciAddress, DividedCard] = dataclasses.field(default_factory=dict)
    providers: Mapping[PciAddress, StockProvider] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Obstacle:
    """Why an instance cannot be taken over as it is, and the remedy."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


@dataclasses.dataclass(frozen=True, slots=True)
class BetterCards:
    """The cards that nova-gpu would have chosen instead of those that the instance has.

    ``paths`` are the longest path between two cards of the instance, and of ``cards``, in the words
    of ``nvidia-smi topo -m``.
    """

    cards: tuple[PciAddress, ...]
    paths: tuple[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class StockHolding:
    """An instance with GPUs of stock Nova, and the flavor that says the same in nova-gpu's words.

    ``cards`` are its whole cards, ``slots`` its vGPUs, each with its card. ``functions`` are those
    functions of all of them that Nova's database counts for it. ``set`` and ``unset`` are the
    properties that the flavor gets and loses. ``aliases`` are those by which it has its cards and
    functions. ``choice`` is ``None`` if nova-gpu would choose cards as near to each other.
    ``former`` is what is kept of it for the way back. ``remarks`` are sentences about what is
    different afterwards. ``back`` is what is in the way back by the present options.
    """

    instance: StockInstance
    deliveries: tuple[StockDelivery, ...]
    cards: tuple[PciAddress, ...]
    slots: Mapping[Slot, PciAddress]
    functions: frozenset[PciAddress]
    aliases: frozenset[str]
    set: Mapping[str, str]
    unset: tuple[str, ...]
    obstacles: Sequence[Obstacle]
    choice: BetterCards | None = None
    former: Former | None = None
    remarks: tuple[str, ...] = ()
    back: Sequence[Obstacle] = ()

    @property
    def cards_by_device(self) -> dict[Device, PciAddress]:
        """The card of each GPU: itself if the instance has it whole."""
        by_device: dict[Device, PciAddress] = {card: card for card in self.cards}
        return by_device | dict(self.slots.items())

    @property
    def devices(self) -> tuple[Device, ...]:
        return tuple(self.cards_by_device)


@dataclasses.dataclass(frozen=True, slots=True)
class StockReturn:
    """An instance with GPUs of nova-gpu, and how it is given back to stock Nova.

    ``functions`` are those of its whole cards and its virtual functions, each with the alias by
    which it gets it there, ``None`` if there is none or several. ``mediated`` are its mediated
    devices, each with the resource class of stock Nova. ``set`` and ``unset`` are the properties
    that the flavor gets and loses. ``losses`` are the functions of its cards that its guest has,
    and that stock Nova will not give it. ``requests`` are what it asked for by an alias before it
    was taken over. ``remarks`` are sentences about what is not as it was then.
    """

    instance: StockInstance
    functions: Mapping[PciAddress, str | None]
    mediated: Mapping[Slot, str]
    set: Mapping[str, str]
    unset: tuple[str, ...]
    obstacles: Sequence[Obstacle]
    losses: tuple[PciAddress, ...] = ()
    requests: Mapping[str, AliasRequest] = dataclasses.field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[Device, ...]:
        return *self.functions, *self.mediated

    @property
    def counts(self) -> dict[str, int]:
        """How many functions it gets by each alias."""
        return collections.Counter(filter(None, self.functions.values()))
