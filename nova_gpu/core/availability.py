# SPDX-License-Identifier: Apache-2.0
"""The reasons why devices of a host cannot be given: one map from a device to all of them.

A device is a card, a virtual function or a MIG instance. One without a reason is offered.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import TypeAlias, TypeVar

Device = TypeVar("Device")


class Scope(enum.Enum):
    """The instances that cannot be given a device: new ones, or all, its own one included."""

    NEW = enum.auto()
    ALL = enum.auto()


class Source(enum.Enum):
    """The finders of reasons.

    ``HOST``: what the host or its options lack. ``DIVISION``: cards given in parts, or to be.
    ``SETS``: boards with NVSwitches. ``SERVICE``: what nova-compute could not read.
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
    SERVICE = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Unavailable:
    """One reason why a device cannot be given, and the remedy."""

    reason: str
    remedy: str
    source: Source
    scope: Scope = Scope.NEW

    def __str__(self) -> str:
        return f"{self.reason}; {self.remedy}" if self.remedy else self.reason

    @property
    def is_fault(self) -> bool:
        """Whether the card itself is at fault."""
        return self.source in (Source.BUS, Source.NVML)


Reasons: TypeAlias = tuple[Unavailable, ...]


def merge(*maps: Mapping[Device, Reasons]) -> dict[Device, Reasons]:
    """Return all reasons of each device without repeats, those of the first map first."""
    merged: dict[Device, Reasons] = {}
    for reasons_by_device in maps:
        for device, reasons in reasons_by_device.items():
            if reasons:
                merged[device] = tuple(dict.fromkeys((*merged.get(device, ()), *reasons)))
    return merged


def for_all(reasons: Reasons) -> Unavailable | None:
    """Return the first reason that holds for the instance that has the device, too."""
    return next((reason for reason in reasons if reason.scope is Scope.ALL), None)


def of_host(reasons: Reasons) -> Unavailable | None:
    """Return the first reason why the host cannot give a card that itself may be well."""
    return next(
        (reason for reason in reasons if reason.scope is Scope.ALL and not reason.is_fault), None
    )


def worst(reasons: Reasons) -> Unavailable | None:
    """Return the first reason that holds for all instances, else the first."""
    return for_all(reasons) or next(iter(reasons), None)


def text(reasons: Reasons) -> str | None:
    """Return the :func:`worst` reason as text."""
    reason = worst(reasons)
    return None if reason is None else str(reason)


def to_new(reasons: Reasons) -> Reasons:
    """Return the same reasons, which do not hold for an instance that has the device."""
    return tuple(dataclasses.replace(reason, scope=Scope.NEW) for reason in reasons)
