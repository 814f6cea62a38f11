# SPDX-License-Identifier: Apache-2.0
"""The reasons why a host cannot give a device to an instance: a map from device to reasons.

A device is a card, a virtual function or a MIG instance. A device without a reason is offered.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import TypeAlias, TypeVar

DeviceT = TypeVar("DeviceT")


class Scope(enum.Enum):
    """The instances that cannot get a device: new ones, or all, including the one that holds it."""

    NEW = enum.auto()
    ALL = enum.auto()


class Source(enum.Enum):
    """The subject of the check that found a reason.

    ``HOST``: the host's configuration. ``DIVISION``: the card's division into vGPUs or MIG
    instances. ``SETS``: the sets of the card's board. ``IN_USE``: processes of the host.
    ``BINDING``: the binding to vfio-pci. ``BUS``: the card on the PCI bus. ``XID``: the kernel's
    log. ``STARTS``: earlier starts of guests. ``PROOF``: the record that the card was cleaned.
    ``GATE``: what an extension does with the card first. ``TEST``: a test of the card.
    ``REPAIR``: the step of a repair that the card waits for.
    ``SERVICE``: nova-compute's own knowledge, which is incomplete.
    """

    HOST = enum.auto()
    DIVISION = enum.auto()
    SETS = enum.auto()
    IN_USE = enum.auto()
    BINDING = enum.auto()
    BUS = enum.auto()
    NVML = enum.auto()
    XID = enum.auto()
    STARTS = enum.auto()
    PROOF = enum.auto()
    QUARANTINE = enum.auto()
    GATE = enum.auto()
    TEST = enum.auto()
    REPAIR = enum.auto()
    SERVICE = enum.auto()


class Repair(enum.Enum):
    """The step of a repair that the source of a fault asks for; the least comes first.

    ``DRAIN_AND_RESET`` is a reset while the cards that are joined with the card have no guest.
    ``SERVICE`` is what a person does at the card.
    """

    RESET = "reset"
    DRAIN_AND_RESET = "drain-and-reset"
    BUS_RESET = "bus-reset"
    REBOOT = "reboot"
    SERVICE = "service"


@dataclasses.dataclass(frozen=True, slots=True)
class Unavailable:
    """One reason why a device cannot be given, and the remedy.

    ``asks``: the step of a repair that its source names, ``None`` if it names none.
    """

    reason: str
    remedy: str
    source: Source
    scope: Scope = Scope.NEW
    asks: Repair | None = None

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}" if self.remedy else self.reason

    @property
    def is_fault(self) -> bool:
        """Whether the card is broken, as the PCI bus, NVML or a test shows it or has shown it."""
        return self.source in (Source.BUS, Source.NVML, Source.TEST, Source.REPAIR)


Reasons: TypeAlias = tuple[Unavailable, ...]


def merge(*maps: Mapping[DeviceT, Reasons]) -> dict[DeviceT, Reasons]:
    """Merge the reasons of each device, without repeats; those of the first map come first."""
    merged: dict[DeviceT, Reasons] = {}
    for reasons_by_device in maps:
        for device, reasons in reasons_by_device.items():
            if reasons:
                merged[device] = tuple(dict.fromkeys((*merged.get(device, ()), *reasons)))
    return merged


def for_all(reasons: Reasons) -> Unavailable | None:
    return next((reason for reason in reasons if reason.scope is Scope.ALL), None)


def of_host(reasons: Reasons) -> Unavailable | None:
    """Return the first reason of scope ``ALL`` that is no fault of the card, or ``None``."""
    return next(
        (reason for reason in reasons if reason.scope is Scope.ALL and not reason.is_fault), None
    )


def worst(reasons: Reasons) -> Unavailable | None:
    """Return the first reason of scope ``ALL``, else the first reason, ``None`` without any."""
    return for_all(reasons) or next(iter(reasons), None)


def text(reasons: Reasons) -> str | None:
    reason = worst(reasons)
    return None if reason is None else str(reason)


def to_new(reasons: Reasons) -> Reasons:
    return tuple(dataclasses.replace(reason, scope=Scope.NEW) for reason in reasons)
