# SPDX-License-Identifier: Apache-2.0
"""The ledger: who has each of the host's devices now, as far as this process knows.

It ensures that no two guests get the same device, even if other records are wrong or late:

* Nova's resource tracker reads its sets of assigned resources anew from the database in every
  period (``ResourceTracker._populate_assigned_resources``, the same in Nova 32 to 34), and a new
  claim may not be saved there yet.
* Placement was seen to accept one allocation more than the inventory has, under load.
* The domain of an instance that was deleted while its host was down still runs.
* libvirt starts two containers with the same device node.

A device is a whole card's address or a vGPU's slot. Its states are: free, claimed, starting, in use
(sometimes moving), dirty, cleaning, and free again. :class:`Snapshot` has the state of all devices
at one moment, and derives answers from it.
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

if TYPE_CHECKING:  # they import Nova, of which this module needs nothing
    from nova_gpu.virt.usage.allocations import Allocations
    from nova_gpu.virt.usage.records import Records

LOG = logging.getLogger(__name__)

# By the uuid of an instance or a domain
DevicesByUuid = Mapping[str, frozenset[Device]]
_NO_DEVICE: frozenset[Device] = frozenset()


class State(enum.Enum):
    """Device states, highest precedence first."""

    CLEANING = "cleaning"  # it is being cleaned after its last guest
    STARTING = "starting"  # a guest is being started with it
    IN_USE = "in use"  # a domain names it
    MOVING = "moving"  # it is kept for a guest without a domain here at the moment
    CLAIMED = "claimed"  # a claim took it, and its guest is not being started yet
    DIRTY = "dirty"  # a guest had it, and it was not cleaned since


@dataclasses.dataclass(frozen=True, slots=True)
class Owner:
    """An instance that has a device. ``project_id``: ``None`` until the database was read."""

    instance_uuid: str
    project_id: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a device; until it ends, no other claim gets the device.

    ``since`` and ``until``: its begin and its end, in seconds of ``time.monotonic()``.
    ``assigned``: the resource tracker's set of assigned resources to which the tracker adds the
    device, compared by identity.
    """

    since: float
    until: float
    assigned: Set[Any]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Assignment:
    """The devices of an instance's start or move. Each is unequal to all other assignments."""

    instance_uuid: str
    devices: frozenset[Device]


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """The owners of devices at one moment, as far as this process knows. It is immutable.

    ``claims``: the claim of each claimed device.
    ``asking``: the starts that wait for libvirt's answer that no other domain has their devices.
    ``starting``: the starts after that answer.
    ``unseen``: the ended starts whose domains libvirt has not listed since.
    ``domains``: the devices of each domain, as libvirt last listed them.
    ``reached``: those devices in ``domains`` that are not the domain's own, as in
    :class:`nova_gpu.virt.usage.domains.DomainDevices`.
    ``last_starts``: the devices of each instance's last start, while the database may not count
    them yet.
    ``moving``: the devices that are reserved for an instance while its guest has no domain here,
    because it is rebuilt or live migrated.
    ``used``: the devices that a guest has, or had without a cleaning since.
    ``cleaning``: the devices that are being cleaned.
    ``records``: the last answer of the database, ``None`` before the first one.
    ``allocations``: the last answer of Placement, ``None`` before the first one.
    ``reserves``: of the providers of which something was last published as reserved because no
    allocation covers it, what is reserved of each resource class for other reasons, by uuid.
    ``written``: the instances whose allocation this process has written since that answer.
    ``doubtful``: what each instance lacks of its allocation from the node, and all of its GPUs, if
    Nova deletes its allocation, which may have happened since that answer.
    """

    claims: Mapping[Device, Claim] = dataclasses.field(default_factory=dict)
    asking: tuple[Assignment, ...] = ()
    starting: tuple[Assignment, ...] = ()
    unseen: tuple[Assignment, ...] = ()
    domains: DevicesByUuid = dataclasses.field(default_factory=dict)
    reached: DevicesByUuid = dataclasses.field(default_factory=dict)
    last_starts: Mapping[str, Assignment] = dataclasses.field(default_factory=dict)
    moving: Mapping[str, Assignment] = dataclasses.field(default_factory=dict)
    used: frozenset[Device] = _NO_DEVICE
    cleaning: frozenset[Device] = _NO_DEVICE
    records: Records | None = None
    allocations: Allocations | None = None
    reserves: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    written: frozenset[str] = frozenset()
    doubtful: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)

    # By state

    def users(self, state: State) -> Iterator[tuple[str, frozenset[Device]]]:
        """Yield the uuid of each instance or domain with devices in *state*, and these devices.

        The uuid is ``""`` for devices that are being cleaned, claimed or dirty.
        """
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
        """Return the devices in *state*; they may be in other states as well."""
        return _NO_DEVICE.union(*(devices for _, devices in self.users(state)))

    def taken(self) -> frozenset[Device]:
        """Return the devices that are claimed, starting, in use, moving or being cleaned."""
        return _NO_DEVICE.union(*(self.devices(e) for e in State if e is not State.DIRTY))

    def left(self) -> frozenset[Device]:
        """Return the devices to be cleaned: dirty, not taken, and no instance's by the database."""
        return self.used - self.taken() - self.counted()

    # By instance

    def is_starting(self, instance_uuid: str) -> bool:
        return any(start.instance_uuid == instance_uuid for start in self.starting)

    def is_between(self, instance_uuid: str) -> bool:
        """Return whether the instance's guest is starting, moving, or returning by a revert."""
        coming = (*self.asking, *self.starting, *self.moving.values())
        returning = self.records.returning if self.records else ()
        return instance_uuid in returning or any(e.instance_uuid == instance_uuid for e in coming)

    def held_for(self, instance_uuid: str) -> frozenset[Device]:
        """Return the devices of the instance's start, once libvirt has listed no other owner."""
        held = (start.devices for start in self.starting if start.instance_uuid == instance_uuid)
        return _NO_DEVICE.union(*held)

    def had_by(self, instance_uuid: str) -> frozenset[Device]:
        """Return the devices of the guest's domain and last start, and those it keeps in a move."""
        assignments = (
            assignment.get(instance_uuid) for assignment in (self.last_starts, self.moving)
        )
        named = self.domains.get(instance_uuid, _NO_DEVICE)
        return named.union(*(assignment.devices for assignment in assignments if assignment))

    def kept_by(self, instance_uuid: str) -> frozenset[Device]:
        """Return the domain's own devices, and those reserved for the instance while it moves."""
        named = self.domains.get(instance_uuid, _NO_DEVICE)
        # Reached devices are left out: the next start makes new nodes, and others may own these.
        named -= self.reached.get(instance_uuid, _NO_DEVICE)
        assignment = self.moving.get(instance_uuid)
        return named | assignment.devices if assignment else named

    # By the database

    def counted_by_instance(self) -> Mapping[str, frozenset[tuple[str, str]]]:
        """Return ``counted`` of the last :class:`Records`; empty before the database was read."""
        return self.records.counted if self.records else {}

    def instances(self) -> frozenset[str]:
        """Return the uuids of this host's instances by the database, with GPUs or without."""
        return frozenset(self.counted_by_instance())

    def stopped(self) -> frozenset[str]:
        """Return the uuids of this host's instances that are stopped and have no task."""
        return self.records.stopped if self.records else frozenset()

    def recorded(self, key_by_provider: Mapping[str, GroupKey]) -> set[tuple[GroupKey, Device]]:
        """Return the devices of these groups that the database counts for instances here."""
        return {
            (key_by_provider[provider_uuid], device.parse(identifier))
            for recorded in self.counted_by_instance().values()
            for provider_uuid, identifier in recorded
            if provider_uuid in key_by_provider
        }

    def counted(self) -> frozenset[Device]:
        """Return the devices that the database counts for instances here, of any provider."""
        return _NO_DEVICE.union(*map(_devices, self.counted_by_instance().values()))

    def counted_for(self, instance_uuid: str) -> frozenset[Device]:
        return self.records.devices(instance_uuid) if self.records else _NO_DEVICE

    def reached_of_others(self) -> dict[str, frozenset[Device]]:
        """Return which devices guests reach that the database does not count for them, by guest."""
        devices_by_guest = {
            uuid: item - self.counted_for(uuid) for uuid, item in self.reached.items()
        }
        return {uuid: devices for uuid, devices in devices_by_guest.items() if devices}

    def counted_instances(self, wanted: Device) -> frozenset[str]:
        """Return the instances for which the database counts *wanted*, its card or a vGPU of it."""
        return frozenset(
            uuid
            for uuid, recorded in self.counted_by_instance().items()
            if device.clashing([wanted], _devices(recorded))
        )

    def started(self) -> frozenset[Device]:
        """Return the devices of instances' last starts that the database may not count yet."""
        return _NO_DEVICE.union(*(start.devices for start in self.last_starts.values()))

    def allocated(self, provider_uuid: str, resource_class: str) -> int | None:
        """Return how much of a provider's resource is allocated, ``None`` if that is unknown."""
        if self.allocations is None or provider_uuid not in self.allocations.by_provider:
            return None
        consumers = self.allocations.by_provider[provider_uuid]
        return self.allocations.amount(provider_uuid, resource_class, consumers)

    def owners(self, key_by_provider: Mapping[str, GroupKey]) -> dict[Device, Owner]:
        """Return the owner of each device, by the database and by the last starts.

        :param key_by_provider: the host's groups, by their providers' uuids; if empty, as before
            the first provider tree, all providers count, so that another host's card may be
            mistaken for the card here that has the same address
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

    def uncovered(self) -> frozenset[Device]:
        """Return the devices that the database counts and no allocation in Placement covers.

        Of an instance with too small an allocation the last ones are returned. Devices of other
        hosts' providers are left out, and all devices before Placement was read.
        """
        return _NO_DEVICE.union(*self.uncovered_by_provider().values())

    def uncovered_by_provider(self) -> dict[str, frozenset[Device]]:
        """Return the devices of :meth:`uncovered` by the uuid of their provider."""
        uncovered: dict[str, frozenset[Device]] = {}
        if self.records is None or self.allocations is None:
            return uncovered
        for uuid, recorded in self.records.counted.items():
            if uuid in self.written:
                continue
            consumers = () if uuid in self.doubtful else self.records.consumers(uuid)
            for provider in {item[0] for item in recorded} & self.allocations.by_provider.keys():
                devices = sorted(_devices(item for item in recorded if item[0] == provider))
                lacking = devices[self.allocations.gpus(provider, consumers) :]
                uncovered[provider] = uncovered.get(provider, _NO_DEVICE).union(lacking)
        return uncovered

    def may_hold(self, consumer: str) -> bool:
        """Return whether *consumer* had an allocation from this host, or that was not read yet."""
        known = self.allocations
        return known is None or any(consumer in amounts for amounts in known.by_provider.values())

    def lacking(self) -> Mapping[str, Mapping[str, int]]:
        """Return what instances lack of their allocations from the compute node, by instance."""
        known = self.allocations.lacking if self.allocations else {}
        return _without({**known, **self.doubtful}, self.written)

    def strangers(self) -> dict[Device, str]:
        """Return the domain's uuid for each device that the database does not count for it.

        Return none before the database was read.
        """
        return self._uncounted() if self.records else {}

    def unjudged(self) -> dict[Device, str]:
        """Return the domain's uuid for each device in a domain, until the database was read."""
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


# Why a device in this state is neither given to another guest nor cleaned
_FACTS = {
    State.STARTING: "another guest is being started",
    State.IN_USE: "another guest names it in its domain",
    State.MOVING: "another guest is about to have it in its domain again",
}


class Ledger:
    """The present snapshot; each change replaces it under one lock.

    The lock is held for the replacement only, and never while libvirt, the database or the host is
    read. Readers take no lock, so that a claim never waits. A reader that needs two answers takes
    both from one snapshot: in each snapshot, a device that changes its state is in the old state
    or in the new one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._now = Snapshot()

    @property
    def now(self) -> Snapshot:
        """The present snapshot, without claims that have expired."""
        snapshot, now = self._now, self._clock()
        claims = {item: claim for item, claim in snapshot.claims.items() if claim.until > now}
        return _with(snapshot, claims=claims) if len(claims) < len(snapshot.claims) else snapshot

    # Claims. Nova's resource tracker adds a claimed device to its set of assigned resources at
    # once, and replaces the set by a new one in each period. A device that is missing from the same
    # set was released. A device that is missing from a newer set may only not be saved yet.

    def claim(
        self,
        devices: Collection[Device],
        back: Collection[Device],
        assigned: Set[Any],
        timeout_s: float,
    ) -> None:
        """Claim *devices* for at most *timeout_s* seconds, and end the claim of those in *back*.

        :param back: devices that the same instance's claim took before and does not need
        :param assigned: the resource tracker's set to which the tracker is about to add *devices*
        """
        since = self._clock()
        claim = Claim(since, since + timeout_s, assigned)
        with self._lock:
            claims = _without(self._now.claims, back) | dict.fromkeys(devices, claim)
            self._now = _with(self._now, claims=claims)

    def compare(self, unassigned: Collection[Device], assigned: Set[Any]) -> None:
        """End the claims of devices that the resource tracker has released; log lost claims.

        A claim is lost if its device is missing from a set that the tracker has read since.

        :param unassigned: the devices of one provider that are not in *assigned*
        :param assigned: the tracker's present set of the provider's ``objects.Resource``
        """
        if not self._now.claims:
            return
        known = {device.parse(item.identifier) for item in assigned}
        with self._lock:
            claims = dict(self._now.claims)
            for dev in known & claims.keys():
                claims[dev] = dataclasses.replace(claims[dev], assigned=assigned)
            missing = claims.keys() & set(unassigned)
            released = {item for item in missing if claims[item].assigned is assigned}
            self._now = _with(self._now, claims=_without(claims, released))
        now = self._clock()
        for dev in missing - released:
            if (claim := claims[dev]).until > now:
                LOG.warning(
                    "A claim does not get GPU %s: %d s ago another claim got it, which Nova's "
                    "resource tracker no longer has and whose guest is not being started. It can "
                    "be claimed in %d s at the latest ([gpu]claim_grace_period).",
                    dev,
                    now - claim.since,
                    claim.until - now + 1,
                )

    # Starts

    @contextlib.contextmanager
    def hold(
        self,
        instance_uuid: str,
        devices: frozenset[Device],
        look: Callable[[], DevicesByUuid],
        devices_kept: frozenset[Device] = frozenset(),
    ) -> Iterator[None]:
        """Reserve *devices* for an instance's start during the block, until its domain is listed.

        :param look: read the devices of all domains from libvirt and note them
            (:meth:`saw_domains`); raise DomainsUnreadable
        :param devices_kept: devices that the guest has by its domain already, which need no claim
        :raises DeviceUnavailable: if another start or domain has one of the devices
        :raises DomainsUnreadable: if libvirt does not list the domains
        """
        start = Assignment(instance_uuid, devices | devices_kept)
        try:
            with self._lock:
                _refuse(self._now, start.devices, instance_uuid)
                # From here on no other start gets them: later ones find this one here. Earlier ones
                # were checked above if they last, and else have a domain in libvirt's answer.
                self._now = _with(self._now, asking=(*self._now.asking, start))
            _refuse_others(start.devices, instance_uuid, look(), _FACTS[State.IN_USE])
        except BaseException:
            with self._lock:  # the claim ends as well
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
        """End an instance's start, and the reservation that :meth:`keep` made before it.

        :param before: the instance's assignment in ``moving`` when the start began
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
        """Reserve *devices* for an instance until it is started here again or leaves this host."""
        assignments = {instance_uuid: Assignment(instance_uuid, frozenset(devices))}
        with self._lock:
            self._now = _with(self._now, moving={**self._now.moving, **assignments})

    def end_move(self, instance_uuid: str) -> None:
        with self._lock:
            self._now = _with(self._now, moving=_without(self._now.moving, [instance_uuid]))

    # Between two guests

    def was_used(self, devices: Iterable[Device]) -> None:
        """Mark *devices* as dirty: a guest gets them now, or had them before this service began."""
        with self._lock:
            self._now = _with(self._now, used=self._now.used.union(devices))

    @contextlib.contextmanager
    def clean(self, wanted: Device) -> Iterator[None]:
        """Reserve a device for its cleaning during the block.

        :raises DeviceUnavailable: if a guest has it or is about to get it, or if it is being
            cleaned already
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
        """Mark the device as clean, and remove it from the last starts and the records."""
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
        self,
        named: DevicesByUuid,
        reached: DevicesByUuid | None = None,
        since: Snapshot | None = None,
    ) -> None:
        """Note which devices the domains have, as libvirt lists them.

        :param reached: those of *named* to which a domain's device nodes lead, or led earlier,
            although they are not its own
        :param since: the snapshot from before libvirt was asked, by default the present one; guests
            whose start ended after it keep their devices, even if *named* lacks them
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
        """Read the database's records, and drop claims and last starts that they make obsolete.

        The answer counts the devices of every guest that was started before, unless its instance is
        gone, is still starting or has another task: then a later answer does. If no instance has a
        task, every claim that is older than the answer was started or given up.
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
                # Earlier starts are unknown: a guest may have used any device of an instance.
                used=now.used | now.counted() if is_first else now.used,
            )

    def read_allocations(self, read: Callable[[Records, Allocations | None], Allocations]) -> None:
        """Read Placement's allocations, which replace what was known of changes before.

        An instance with a task stays doubtful: Nova may be about to delete its allocation. Do
        nothing before the database was read.
        """
        before = self._now
        if before.records is None:
            return
        allocations, busy = read(before.records, before.allocations), before.records.busy
        with self._lock:
            now = self._now
            doubtful = {
                uuid: part
                for uuid, part in now.doubtful.items()
                if uuid in busy or before.doubtful.get(uuid) is not part
            }
            self._now = _with(
                now,
                allocations=allocations,
                written=now.written - before.written,
                doubtful=doubtful,
            )

    def wrote_allocation(self, instance_uuid: str) -> None:
        """Note that the instance's allocation covers what it has, until Placement is read again."""
        with self._lock:
            self._now = _with(
                self._now,
                written=self._now.written | {instance_uuid},
                doubtful=_without(self._now.doubtful, [instance_uuid]),
            )

    def published(self, reserves: Mapping[str, Mapping[str, int]]) -> None:
        """Note what is reserved of providers for other reasons than a missing allocation."""
        with self._lock:
            self._now = _with(self._now, reserves=reserves)

    def doubt_allocation(self, instance_uuid: str, node_part: Mapping[str, int]) -> None:
        """Note that Nova may delete the instance's allocation now, without a call of the driver."""
        with self._lock:
            self._now = _with(
                self._now,
                written=self._now.written - {instance_uuid},
                doubtful={**self._now.doubtful, instance_uuid: node_part},
            )


_with = dataclasses.replace


def _without(mapping: Mapping[Any, Any], keys: Collection[Any]) -> dict[Any, Any]:
    return {key: item for key, item in mapping.items() if key not in keys}


def _not_asking(now: Snapshot, start: Assignment, claimed: Collection[Device]) -> Snapshot:
    """Return *now* without *start* among those that wait for libvirt, and without these claims."""
    asking = tuple(item for item in now.asking if item is not start)
    return _with(now, asking=asking, claims=_without(now.claims, claimed))


def _answers(look: Callable[[], DevicesByUuid]) -> bool:
    try:
        look()
    except exception.DomainsUnreadable as error:
        LOG.error("%s. nova-compute goes on with the GPUs' last known state.", error)
        return False
    return True


def _refuse(now: Snapshot, wanted: frozenset[Device], instance_uuid: str) -> None:
    """Refuse a start or a cleaning whose devices another instance has, or that are being cleaned.

    Before a start the caller checks the devices of domains, which it lists anew.

    :param instance_uuid: the instance to be started, ``""`` for a cleaning
    """
    for clash in sorted(device.clashing(wanted, now.cleaning), key=str):
        raise exception.DeviceUnavailable(
            str(clash), "it is being cleaned after its last guest", "try again when that is done"
        )
    for state, fact in _FACTS.items():
        if state is not State.IN_USE or not instance_uuid:
            for uuid, devices in now.users(state):
                _refuse_others(wanted, instance_uuid, {uuid: devices}, fact)


def _refuse_others(
    wanted: frozenset[Device], instance_uuid: str, others: DevicesByUuid, fact: str
) -> None:
    for uuid, devices in others.items():
        if uuid != instance_uuid and (clashing := device.clashing(wanted, devices)):
            raise exception.DeviceUnavailable(
                min(map(str, clashing)),
                fact,
                "if Nova knows no instance of its uuid, remove its domain with virsh",
                uuid,
            )
