# SPDX-License-Identifier: Apache-2.0
"""The ledger: owners of a host's devices, as far as this process knows, and every change.

No two guests get one device, whatever the records say: Nova's resource tracker fills its sets of
what is assigned anew from the database in every period
(``ResourceTracker._populate_assigned_resources``, the same in Nova 32 to 34), where a fresh claim
may not be saved yet; Placement has been seen to let one allocation too many through under load;
after an instance was deleted while its host was down its domain still runs; and libvirt starts two
containers with one device node.

A device is a whole card's address or a vGPU's slot. It is free, claimed, starting, in use (moving
now and then), dirty, being cleaned, and free again. :class:`Snapshot` has all of it at one moment,
and what follows from it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any

from oslo_log import log as logging

from nova_gpu.core import device, exception
from nova_gpu.core.device import Device
from nova_gpu.core.model import GroupKey

if TYPE_CHECKING:  # it imports Nova, of which this module needs nothing
    from nova_gpu.virt.usage.records import Records

LOG = logging.getLogger(__name__)

# By the uuid of an instance or a domain
Named = Mapping[str, frozenset[Device]]
_NO_DEVICE: frozenset[Device] = frozenset()


class State(enum.Enum):
    """Device states, highest precedence first."""

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
    """A device that left the pool.

    It has the time, its end (``time.monotonic()``), and the tracker's own set that it is for, which
    is told from others by being itself.
    """

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
    """What this process knows of the owners of devices. It is immutable.

    ``domains`` is what libvirt named last and ``reached`` what of that is not the domain's own, as
    :class:`nova_gpu.virt.usage.domains.Named` has them. ``records`` is the database's last answer,
    ``None`` before the first. ``asking`` are the starts that wait for libvirt's word that no other
    domain has their devices, ``starting`` those that have it, and ``unseen`` those that are over
    without an answer of libvirt since. ``last_starts`` is what the last start of an instance
    gave it, while the database may not count that yet; ``moving`` what it is to find again.
    ``used`` are the devices that a guest has, or had and that were not cleaned since.
    """

    claims: Mapping[Device, Claim] = dataclasses.field(default_factory=dict)
    asking: tuple[Assignment, ...] = ()
    starting: tuple[Assignment, ...] = ()
    unseen: tuple[Assignment, ...] = ()
    domains: Named = dataclasses.field(default_factory=dict)
    reached: Named = dataclasses.field(default_factory=dict)
    last_starts: Mapping[str, Assignment] = dataclasses.field(default_factory=dict)
    moving: Mapping[str, Assignment] = dataclasses.field(default_factory=dict)
    used: frozenset[Device] = _NO_DEVICE
    cleaning: frozenset[Device] = _NO_DEVICE
    records: Records | None = None

    # By state

    def users(self, state: State) -> Iterator[tuple[str, frozenset[Device]]]:
        """Yield the devices in *state*, each with its instance's uuid or ``""``."""
        if state is State.CLEANING:
            yield "", self.cleaning
        elif state is State.STARTING:
            yield from _pairs((*self.asking, *self.starting))
        elif state is State.IN_USE:
            yield from self.domains.items()
            yield from _pairs(self.unseen)
        elif state is State.MOVING:
            yield from _pairs(self.moving.values())
        elif state is State.CLAIMED:
            yield "", frozenset(self.claims)
        else:
            yield "", self.used

    def devices(self, state: State) -> frozenset[Device]:
        """Return the devices in *state*, whatever else they are in."""
        return _NO_DEVICE.union(*(devices for _, devices in self.users(state)))

    def taken(self) -> frozenset[Device]:
        """Return the devices that are in use or being cleaned."""
        return _NO_DEVICE.union(*(self.devices(e) for e in State if e is not State.DIRTY))

    def left(self) -> frozenset[Device]:
        """Return the devices that no guest has and the database counts for no instance any more."""
        return self.used - self.taken() - self.counted()

    # By instance

    def is_starting(self, instance_uuid: str) -> bool:
        return any(start.instance_uuid == instance_uuid for start in self.starting)

    def is_between(self, instance_uuid: str) -> bool:
        """Return whether the instance's guest is starting, or about to be here again."""
        coming = (*self.asking, *self.starting, *self.moving.values())
        returning = self.records.returning if self.records else ()
        return instance_uuid in returning or any(e.instance_uuid == instance_uuid for e in coming)

    def held_for(self, instance_uuid: str) -> frozenset[Device]:
        """Return what a start of the instance that is under way has found in no other guest."""
        held = (start.devices for start in self.starting if start.instance_uuid == instance_uuid)
        return _NO_DEVICE.union(*held)

    def had_by(self, instance_uuid: str) -> frozenset[Device]:
        """Return the devices of the instance's domain, of its start, or kept for it."""
        assignments = (
            assignment.get(instance_uuid) for assignment in (self.last_starts, self.moving)
        )
        named = self.domains.get(instance_uuid, _NO_DEVICE)
        return named.union(*(assignment.devices for assignment in assignments if assignment))

    def kept_by(self, instance_uuid: str) -> frozenset[Device]:
        """Return what the instance's domain names, or named before it went to come back."""
        named = self.domains.get(instance_uuid, _NO_DEVICE)
        # Its next start gets other nodes, and these may be somebody else's own.
        named -= self.reached.get(instance_uuid, _NO_DEVICE)
        assignment = self.moving.get(instance_uuid)
        return named | assignment.devices if assignment else named

    # By the database

    def counted_by_instance(self) -> Mapping[str, frozenset[tuple[str, str]]]:
        """Return what the database counts, as :class:`nova_gpu.virt.usage.records.Records`."""
        return self.records.counted if self.records else {}

    def instances(self) -> frozenset[str]:
        """Return all for which the database counts something here, or nothing."""
        return frozenset(self.counted_by_instance())

    def stopped(self) -> frozenset[str]:
        """Return the instances here that are stopped, without a task."""
        return self.records.stopped if self.records else frozenset()

    def recorded(self, key_by_provider: Mapping[str, GroupKey]) -> set[tuple[GroupKey, Device]]:
        """Return the cards of these providers that the database counts for an instance."""
        return {
            (key_by_provider[provider_uuid], device.parse(identifier))
            for recorded in self.counted_by_instance().values()
            for provider_uuid, identifier in recorded
            if provider_uuid in key_by_provider
        }

    def counted(self) -> frozenset[Device]:
        """Return all cards that the database counts for an instance here, of whatever group."""
        return _NO_DEVICE.union(*map(_devices, self.counted_by_instance().values()))

    def counted_for(self, instance_uuid: str) -> frozenset[Device]:
        return _devices(self.counted_by_instance().get(instance_uuid, ()))

    def reached_of_others(self) -> dict[str, frozenset[Device]]:
        """Return what running guests reach, by uuid, that the database does not count for them."""
        devices_by_guest = {
            uuid: item - self.counted_for(uuid) for uuid, item in self.reached.items()
        }
        return {uuid: devices for uuid, devices in devices_by_guest.items() if devices}

    def counted_instances(self, wanted: Device) -> frozenset[str]:
        """Return the instances that have the device, or a part or all of its card."""
        return frozenset(
            uuid
            for uuid, recorded in self.counted_by_instance().items()
            if device.clashing([wanted], _devices(recorded))
        )

    def started(self) -> frozenset[Device]:
        """Return what guests were started with that the database may not count yet."""
        return _NO_DEVICE.union(*(start.devices for start in self.last_starts.values()))

    def owners(self, key_by_provider: Mapping[str, GroupKey]) -> dict[Device, Owner]:
        """Return the owners of cards, by the database and by the last starts.

        :param key_by_provider: the host's groups; without any, those before the first provider
            tree, another host's card of the same address may be taken for one of its
        """
        projects = self.records.projects if self.records else {}
        owners = {
            dev: Owner(uuid, projects.get(uuid))
            for uuid, started in self.last_starts.items()
            for dev in started.devices
        }
        for uuid, recorded in self.counted_by_instance().items():
            for provider_uuid, identifier in recorded:
                if not key_by_provider or provider_uuid in key_by_provider:
                    owners[device.parse(identifier)] = Owner(uuid, projects.get(uuid))
        return owners

    def strangers(self) -> dict[Device, str]:
        """Return cards of a domain that Nova does not count for it, with the domain's uuid."""
        return self._uncounted() if self.records else {}

    def unjudged(self) -> dict[Device, str]:
        """Return the devices of domains, and the domains, while the database has not been read."""
        return {} if self.records else self._uncounted()

    def _uncounted(self) -> dict[Device, str]:
        returning = self.records.returning if self.records else frozenset()
        return {
            dev: uuid
            for uuid, named in self.domains.items()
            if uuid not in self.last_starts and uuid not in returning
            for dev in named - self.counted_for(uuid)
        }


def _pairs(assignments: Iterable[Assignment]) -> Iterator[tuple[str, frozenset[Device]]]:
    return ((assignment.instance_uuid, assignment.devices) for assignment in assignments)


def _devices(recorded: Iterable[tuple[str, str]]) -> frozenset[Device]:
    return frozenset(device.parse(identifier) for _, identifier in recorded)


# Why a device that is in such a state is not given to a guest, nor cleaned
_FACTS = {
    State.STARTING: "another guest is being started",
    State.IN_USE: "another guest names it in its domain",
    State.MOVING: "another guest is about to have it in its domain again",
}


class Ledger:
    """One snapshot after another, each in the place of the last under one lock.

    The lock is held for that alone, and never while libvirt, the database or the host is asked. Who
    reads takes no lock at all, so that a claim waits for nothing. Who wants to know two things
    takes both from one snapshot: a device that goes from one state to the next is in one of them.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._now = Snapshot()

    @property
    def now(self) -> Snapshot:
        """The snapshot of now, without the claims whose time is over."""
        snapshot, now = self._now, self._clock()
        claims = {item: claim for item, claim in snapshot.claims.items() if claim.until > now}
        return _with(snapshot, claims=claims) if len(claims) < len(snapshot.claims) else snapshot

    # Claims. The tracker counts a claimed device as assigned at once, until it fills its sets anew.
    # From one filling to the next such a set is one and the same object: what is no longer in it
    # was released. What is not in a set that was filled since may only be forgotten there.

    def claim(
        self,
        devices: Collection[Device],
        back: Collection[Device],
        assigned: Set[Any],
        timeout_s: float,
    ) -> None:
        """Take *devices* from the pool for *timeout_s* at most; return *back*, of the same claim.

        :param assigned: the set that the tracker is about to add them to
        """
        since = self._clock()
        claim = Claim(since, since + timeout_s, assigned)
        with self._lock:
            claims = _without(self._now.claims, back) | dict.fromkeys(devices, claim)
            self._now = _with(self._now, claims=claims)

    def compare(self, unassigned: Collection[Device], assigned: Set[Any]) -> None:
        """Return to the pool what the tracker has released, and logs what it may have forgotten.

        :param assigned: the tracker's set of ``objects.Resource``, now
        :param unassigned: the other devices of the same provider
        """
        if not self._now.claims:
            return
        known = {device.parse(item.identifier) for item in assigned}
        with self._lock:
            claims = dict(self._now.claims)
            for claim in known & claims.keys():
                claims[claim] = dataclasses.replace(claims[claim], assigned=assigned)
            missing = claims.keys() & set(unassigned)
            released = {item for item in missing if claims[item].assigned is assigned}
            self._now = _with(self._now, claims=_without(claims, released))
        for dev in missing - released:
            _log_forgotten(dev, claims[dev], self._clock())

    # Starts

    @contextlib.contextmanager
    def hold(
        self,
        instance_uuid: str,
        devices: frozenset[Device],
        look: Callable[[], Named],
        devices_kept: frozenset[Device] = frozenset(),
    ) -> Iterator[None]:
        """Reserve *devices* for the instance until libvirt has said whether its new guest has them.

        :param look: asks libvirt which devices the domains name now, and notes it
            (:meth:`saw_domains`); raises DomainsUnreadable
        :param devices_kept: what else the guest has and Nova counts in another way than nova-gpu
        :raises DeviceUnavailable: when another start or domain has one of them
        :raises DomainsUnreadable: when libvirt does not say
        """
        start = Assignment(instance_uuid, devices | devices_kept)
        try:
            with self._lock:
                _refuse(self._now, start.devices, instance_uuid)
                # From here on nobody else gets them. A domain that appears in libvirt's answer is
                # that of a start that was seen here, or of one that libvirt was asked about.
                self._now = _with(self._now, asking=(*self._now.asking, start))
            _refuse_others(start.devices, instance_uuid, look(), _FACTS[State.IN_USE])
        except BaseException:
            with self._lock:  # its claim is given up as well
                self._now = _not_asking(self._now, start, devices)
            raise
        with self._lock:
            before = self._now.moving.get(instance_uuid)
            now = _not_asking(self._now, start, devices)
            assignments = {instance_uuid: Assignment(instance_uuid, devices)} if devices else {}
            self._now = _with(
                now, starting=(*now.starting, start), last_starts={**now.last_starts, **assignments}
            )
        try:
            yield
        finally:
            self._end(start, before, _answers(look))

    def _end(self, start: Assignment, before: Assignment | None, is_seen: bool) -> None:
        """End a start.

        :param before: what was kept for the instance when the start began
        """
        with self._lock:
            now = self._now
            is_back = now.moving.get(start.instance_uuid) is before
            self._now = _with(
                now,
                starting=tuple(item for item in now.starting if item is not start),
                unseen=now.unseen if is_seen else (*now.unseen, start),
                moving=_without(now.moving, [start.instance_uuid]) if is_back else now.moving,
            )

    def keep(self, instance_uuid: str, devices: Collection[Device]) -> None:
        """Reserve *devices* until the instance is started with them or is no longer here."""
        assignments = {instance_uuid: Assignment(instance_uuid, frozenset(devices))}
        with self._lock:
            self._now = _with(self._now, moving={**self._now.moving, **assignments})

    def let_go(self, instance_uuid: str) -> None:
        """Stop keeping devices for their instance."""
        with self._lock:
            self._now = _with(self._now, moving=_without(self._now.moving, [instance_uuid]))

    # Between two guests

    def was_used(self, devices: Iterable[Device]) -> None:
        """Note that a guest gets them now, or had them before this service was started."""
        with self._lock:
            self._now = _with(self._now, used=self._now.used.union(devices))

    @contextlib.contextmanager
    def clean(self, wanted: Device) -> Iterator[None]:
        """Reserve a device that a guest had while it is cleaned.

        :raises DeviceUnavailable: when a guest has it or is about to, or it is being cleaned
        """
        with self._lock:
            _refuse(self._now, frozenset({wanted}), "")
            self._now = _with(self._now, cleaning=self._now.cleaning | {wanted})
        try:
            yield
        finally:
            with self._lock:
                self._now = _with(self._now, cleaning=self._now.cleaning - {wanted})

    def cleaned(self, wanted: Device) -> None:
        """Forget that a guest had the device, and what was read of it before that."""
        with self._lock:
            now = self._now
            self._now = _with(
                now,
                used=now.used - {wanted},
                last_starts={
                    uuid: Assignment(uuid, item.devices - {wanted})
                    if wanted in item.devices
                    else item
                    for uuid, item in now.last_starts.items()
                },
                records=now.records and now.records.without(str(wanted)),
            )

    # What libvirt and the database say

    def saw_domains(
        self, named: Named, reached: Named | None = None, since: Snapshot | None = None
    ) -> None:
        """Note the devices of domains, by the domain's uuid.

        :param reached: those of them that are not the domain's own
        :param since: what was known when libvirt was asked; by default what is known now. Of starts
            that ended later it has said nothing
        """
        unseen = (since or self._now).unseen
        with self._lock:
            self._now = _with(
                self._now,
                domains=dict(named),
                reached={uuid: uuid_ for uuid, uuid_ in (reached or {}).items() if uuid_},
                unseen=tuple(uuid for uuid in self._now.unseen if uuid not in unseen),
                used=self._now.used.union(*named.values()),
            )

    def read_records(self, read: Callable[[Collection[str]], Records]) -> None:
        """Take what the database counts now.

        A guest that was started before the database was asked is in its answer, or has no
        instance unless its start or another task of the instance is under way: then a later answer
        says it. Where no instance has a task, every claim from before was started or given up.

        :param read: asks the database, given the uuids of the domains that name devices
        """
        before, when = self._now, self._clock()
        records = read({uuid for uuid, named in before.domains.items() if named})
        with self._lock:
            now = _with(self._now, records=records)
            claims = now.claims
            if not records.busy:
                claims = {item: claim for item, claim in claims.items() if claim.since >= when}
            settled = {
                uuid
                for uuid, item in before.last_starts.items()
                # Another start of the same instance, since then, is another assignment.
                if now.last_starts.get(uuid) is item
                and not now.is_starting(uuid)
                and (uuid not in records.busy or item.devices <= now.counted_for(uuid))
            }
            gone = {
                uuid
                for uuid, item in before.moving.items()
                if now.moving.get(uuid) is item and uuid not in records.counted
            }
            is_first = self._now.records is None
            self._now = _with(
                now,
                claims=claims,
                last_starts=_without(now.last_starts, settled),
                moving=_without(now.moving, gone),
                # What was before this service is not known: an instance's card may have been used.
                used=now.used | now.counted() if is_first else now.used,
            )


_with = dataclasses.replace


def _without(mapping: Mapping[Any, Any], keys: Collection[Any]) -> dict[Any, Any]:
    return {key: item for key, item in mapping.items() if key not in keys}


def _not_asking(now: Snapshot, start: Assignment, claimed: Collection[Device]) -> Snapshot:
    """Return *start* has its answer: it holds what was claimed for it, or gives the claim up."""
    asking = tuple(item for item in now.asking if item is not start)
    return _with(now, asking=asking, claims=_without(now.claims, claimed))


def _answers(look: Callable[[], Named]) -> bool:
    try:
        look()
    except exception.DomainsUnreadable as error:
        LOG.error("%s. The former state of the GPUs stays in force.", error)
        return False
    return True


def _refuse(now: Snapshot, wanted: frozenset[Device], instance_uuid: str) -> None:
    """Refuse devices of another instance, or that are being cleaned.

    Of those that domains name libvirt is asked anew before a guest is started.

    :raises DeviceUnavailable: with the first of *wanted*
    """
    for clash in sorted(device.clashing(wanted, now.cleaning), key=str):
        raise exception.DeviceUnavailable(
            str(clash), "it is being cleaned of its last guest", "try again when it is done"
        )
    for state, fact in _FACTS.items():
        if state is not State.IN_USE or not instance_uuid:
            for uuid, devices in now.users(state):
                _refuse_others(wanted, instance_uuid, {uuid: devices}, fact)


def _refuse_others(wanted: frozenset[Device], instance_uuid: str, others: Named, fact: str) -> None:
    for uuid, devices in others.items():
        if uuid != instance_uuid and (clashing := device.clashing(wanted, devices)):
            raise exception.DeviceUnavailable(
                min(map(str, clashing)),
                fact,
                "if Nova knows no instance of its uuid, remove its domain with virsh",
                uuid,
            )


def _log_forgotten(wanted: Device, claim: Claim, now: float) -> None:
    if claim.until > now:
        LOG.warning(
            "A claim does not get GPU %s: %d s ago another claim got it, which Nova's resource "
            "tracker no longer has and whose guest is not being started. It can be claimed in %d s "
            "at the latest ([gpu]claim_grace_period).",
            wanted,
            now - claim.since,
            claim.until - now + 1,
        )
