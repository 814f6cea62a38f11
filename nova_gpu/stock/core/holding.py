# SPDX-License-Identifier: Apache-2.0
"""The GPUs that instances have by stock Nova: by ``[pci]alias`` or as mediated devices."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence

from nova_gpu.core.availability import Reasons
from nova_gpu.core.model import GPU, PciAddress


class Way(enum.StrEnum):
    """How stock Nova gave an instance its GPUs."""

    ALIAS = "alias"
    MEDIATED = "mediated device"


@dataclasses.dataclass(frozen=True, slots=True)
class Domain:
    """The devices that a libvirt domain names: PCI functions, and uuids of mediated devices."""

    functions: frozenset[PciAddress] = frozenset()
    mediated: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class MediatedDevice:
    """A mediated device: the function that it was made at, the card of that, its vGPU type."""

    parent: PciAddress
    card: PciAddress
    type_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class Alias:
    """An alias of ``[pci]alias`` that gives cards of the host.

    ``set`` are the properties by which a flavor asks nova-gpu for one of them, empty if the alias
    gives cards of several products.
    """

    name: str
    cards: tuple[PciAddress, ...]
    set: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Instance:
    """Nova's records of an instance on the host.

    ``recorded`` are the PCI functions that its database counts for the instance, each with the
    alias by which the instance got it, ``None`` if the record does not say. ``counted`` are the
    cards that the instance has by nova-gpu, ``parts`` whether it has vGPUs by it. ``unfinished``: a
    takeover of it has begun and is to be finished. ``migration`` is the status of a migration of
    the instance that has not ended. ``elsewhere`` is the host that it is on instead of this one.
    """

    uuid: str
    flavor: str
    extra_specs: Mapping[str, str]
    vm_state: str
    task_state: str | None = None
    migration: str | None = None
    recorded: Mapping[PciAddress, str | None] = dataclasses.field(default_factory=dict)
    counted: frozenset[PciAddress] = frozenset()
    parts: bool = False
    unfinished: bool = False
    elsewhere: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Hardware:
    """The host's cards as nova-gpu would have them without the options of stock Nova.

    ``reasons`` are against offering cards. ``cards_by_function`` has every function of each card,
    virtual ones too. ``mediated`` are the mediated devices that exist, by uuid. ``divided`` are the
    cards that would be offered in parts.
    """

    gpus: Mapping[PciAddress, GPU]
    reasons: Mapping[PciAddress, Reasons]
    cards_by_function: Mapping[PciAddress, PciAddress]
    mediated: Mapping[str, MediatedDevice]
    divided: frozenset[PciAddress] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Obstacle:
    """Why an instance cannot be taken over as it is, and the remedy."""

    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}"


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The cards that nova-gpu would have chosen instead of those that the instance has.

    ``paths`` are the longest path between two cards of the instance, and of ``cards``, in the words
    of ``nvidia-smi topo -m``.
    """

    cards: tuple[PciAddress, ...]
    paths: tuple[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """An instance with GPUs of stock Nova, and the flavor that says the same in nova-gpu's words.

    ``cards`` are its whole cards, and ``functions`` those of their functions that Nova's database
    counts for it; ``devices`` are the cards, and mediated devices as ``<function>/<type>``. ``set``
    and ``unset`` are the properties that the flavor gets and loses. ``aliases`` are those by which
    it has its cards. ``choice`` is ``None`` if nova-gpu would choose cards as near to each other.
    """

    instance: Instance
    ways: tuple[Way, ...]
    cards: tuple[PciAddress, ...]
    functions: frozenset[PciAddress]
    devices: tuple[str, ...]
    aliases: frozenset[str]
    set: Mapping[str, str]
    unset: tuple[str, ...]
    obstacles: Sequence[Obstacle]
    choice: Choice | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Leaving:
    """An instance with whole cards of nova-gpu, and how it is given back to stock Nova.

    ``alias`` is the one by which it gets its cards there, ``None`` if there is none or several.
    ``set`` and ``unset`` are the properties that the flavor gets and loses.
    """

    instance: Instance
    cards: tuple[PciAddress, ...]
    alias: str | None
    set: Mapping[str, str]
    unset: tuple[str, ...]
    obstacles: Sequence[Obstacle]
