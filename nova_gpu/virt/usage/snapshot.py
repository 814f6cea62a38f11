# SPDX-License-Identifier: Apache-2.0
"""Who has which device of a host at one moment, and what follows from it.

A device is a whole card's address or a vGPU's slot. It is free, claimed, starting, in use (moving
now and then), dirty, being cleaned, and free again.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any

from nova_gpu.core import device
from nova_gpu.core.device import Device
from nova_gpu.core.model import GroupKey

if TYPE_CHECKING:  # it imports Nova, of which this module needs nothing
    from nova_gpu.virt.usage.records import Records

# By the uuid of an instance or a domain
Named = Mapping[str, frozenset[Device]]
_NO_DEVICE: frozenset[Device] = frozenset()


class State(enum.Enum):
    """What may be going on with a device. Of several the first is the one that it is in."""

    CLEANING = "cleaning"  # of its last guest
    STARTING = "starting"  # a guest is being started with it
    IN_USE = "in use"  # a domain names it
    MOVING = "moving"  # a guest has it that is in no domain here just now, but will be, or was
    CLAIMED = "claimed"  # by a claim whose guest is not being started yet
    DIRTY = "dirty"  # a guest had it, and it was not cleaned since


@dataclasses.dataclass(frozen=True, slots=True)
class Owner:
    """An instance that has a card; its project where the database has said it."""

    instance_uuid: str
    project_id: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A device that left the pool, when, until when at most (``time.monotonic()``), and for which
    of the tracker's own sets, which is told from others by being itself."""

    since: float
    until: float
    assigned: Set[Any]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """Devices of an instance. A later one with the same devices is another one."""

    instance_uuid: str
    devices: frozenset[Device]


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that this process knows of who has what. Nobody changes it.

    ``domains`` is what libvirt named last and ``reached`` what of that is not the domain's own, as
    :class:`nova_gpu.virt.usage.domains.Named` has them. ``records`` is the database's last answer,
    ``None`` before the first. ``asking`` are the starts that wait for libvirt's word that no other
    domain has their devices, ``starting`` those that have it, and ``unseen`` those that are over
    without an answer of libvirt since. ``last_starts`` is what the last start of an instance
    gave it, while the database may not count that yet; ``kept`` what it is to find again. ``used``
    are the devices that a guest has, or had and that were not cleaned since.
    """

    claims: Mapping[Device, Claim] = dataclasses.field(default_factory=dict)
    asking: tuple[Assignment, ...] = ()
    starting: tuple[Assignment, ...] = ()
    unseen: tuple[Assignment, ...] = ()
    domains: Named = dataclasses.field(default_factory=dict)
    reached: Named = dataclasses.field(default_factory=dict)
    last_starts: Mapping[str, Assignment] = dataclasses.field(default_factory=dict)
    kept: Mapping[str, Assignment] = dataclasses.field(default_factory=dict)
    used: frozenset[Device] = _NO_DEVICE
    cleaning: frozenset[Device] = _NO_DEVICE
    records: Records | None = None

    # By state

    def users(self, state: State) -> Iterator[tuple[str, frozenset[Device]]]:
        """The devices in *state*, whatever else they are in, each with its instance's uuid or
        ``""``."""
        if state is State.CLEANING:
            yield "", self.cleaning
        elif state is State.STARTING:
            yield from _pairs((*self.asking, *self.starting))
        elif state is State.IN_USE:
            yield from self.domains.items()
            yield from _pairs(self.unseen)
        elif state is State.MOVING:
            yield from _pairs(self.kept.values())
        elif state is State.CLAIMED:
            yield "", frozenset(self.claims)
        else:
            yield "", self.used

    def devices(self, state: State) -> frozenset[Device]:
        """The devices in *state*, whatever else they are in"""
        return _NO_DEVICE.union(*(devices for _, devices in self.users(state)))

    def state_of(self, wanted: Device) -> State | None:
        """``None`` of a device that is free for all that this process knows"""
        return next((each for each in State if wanted in self.devices(each)), None)

    def taken(self) -> frozenset[Device]:
        """The devices that somebody has, or that are being cleaned."""
        return _NO_DEVICE.union(*(self.devices(e) for e in State if e is not State.DIRTY))

    def left(self) -> frozenset[Device]:
        """The devices that no guest has and the database counts for no instance any more."""
        return self.used - self.taken() - self.counted()

    # By instance

    def is_starting(self, instance_uuid: str) -> bool:
        return any(each.instance_uuid == instance_uuid for each in self.starting)

    def held_for(self, instance_uuid: str) -> frozenset[Device]:
        """What a start of the instance that is under way has seen to be nobody else's."""
        held = (each.devices for each in self.starting if each.instance_uuid == instance_uuid)
        return _NO_DEVICE.union(*held)

    def had_by(self, instance_uuid: str) -> frozenset[Device]:
        """What the instance's domain named at the last look, or its guest was started with, or is
        kept for it."""
        given = (each.get(instance_uuid) for each in (self.last_starts, self.kept))
        named = self.domains.get(instance_uuid, _NO_DEVICE)
        return named.union(*(each.devices for each in given if each))

    def kept_by(self, instance_uuid: str) -> frozenset[Device]:
        """What the instance's domain names, or named before it went to come back."""
        named = self.domains.get(instance_uuid, _NO_DEVICE)
        # Its next start gets other nodes, and these may be somebody else's own.
        named -= self.reached.get(instance_uuid, _NO_DEVICE)
        kept = self.kept.get(instance_uuid)
        return named | kept.devices if kept else named

    # By the database

    def counted_by_instance(self) -> Mapping[str, frozenset[tuple[str, str]]]:
        """What the database counts, as :class:`nova_gpu.virt.usage.records.Records` has it"""
        return self.records.counted if self.records else {}

    def instances(self) -> frozenset[str]:
        """All for which the database counts something here, or nothing"""
        return frozenset(self.counted_by_instance())

    def stopped(self) -> frozenset[str]:
        """The instances here that are stopped, without a task"""
        return self.records.stopped if self.records else frozenset()

    def recorded(self, key_by_provider: Mapping[str, GroupKey]) -> set[tuple[GroupKey, Device]]:
        """The cards of these providers that the database counts for an instance."""
        return {
            (key_by_provider[provider_uuid], device.parse(identifier))
            for recorded in self.counted_by_instance().values()
            for provider_uuid, identifier in recorded
            if provider_uuid in key_by_provider
        }

    def counted(self) -> frozenset[Device]:
        """All cards that the database counts for an instance here, of whatever group it says."""
        return _NO_DEVICE.union(*map(_devices, self.counted_by_instance().values()))

    def counted_for(self, instance_uuid: str) -> frozenset[Device]:
        return _devices(self.counted_by_instance().get(instance_uuid, ()))

    def started(self) -> frozenset[Device]:
        """What guests were started with that the database may not count yet."""
        return _NO_DEVICE.union(*(each.devices for each in self.last_starts.values()))

    def owners(self, key_by_provider: Mapping[str, GroupKey]) -> dict[Device, Owner]:
        """The owners of cards, by the database and by the last starts.

        :param key_by_provider: the host's groups; without any, those before the first provider
            tree, another host's card of the same address may be taken for one of its
        """
        projects = self.records.projects if self.records else {}
        owners = {
            each: Owner(uuid, projects.get(uuid))
            for uuid, started in self.last_starts.items()
            for each in started.devices
        }
        for uuid, recorded in self.counted_by_instance().items():
            for provider_uuid, identifier in recorded:
                if not key_by_provider or provider_uuid in key_by_provider:
                    owners[device.parse(identifier)] = Owner(uuid, projects.get(uuid))
        return owners

    def strangers(self) -> dict[Device, str]:
        """The cards named by a domain that Nova does not count for it, with the domain's uuid."""
        return self._uncounted() if self.records else {}

    def unjudged(self) -> dict[Device, str]:
        """The devices that domains name, and the domains, while the database has not been read."""
        return {} if self.records else self._uncounted()

    def _uncounted(self) -> dict[Device, str]:
        returning = self.records.returning if self.records else frozenset()
        return {
            each: uuid
            for uuid, named in self.domains.items()
            if uuid not in self.last_starts and uuid not in returning
            for each in named - self.counted_for(uuid)
        }


def _pairs(assignments: Iterable[Assignment]) -> Iterator[tuple[str, frozenset[Device]]]:
    return ((each.instance_uuid, each.devices) for each in assignments)


def _devices(recorded: Iterable[tuple[str, str]]) -> frozenset[Device]:
    return frozenset(device.parse(identifier) for _, identifier in recorded)
