# SPDX-License-Identifier: Apache-2.0
"""Who has which device of a host, as far as this process knows, and every change of it.

No two guests get one device, whatever the records say: Nova's resource tracker fills its sets of
what is assigned anew from the database in every period
(``ResourceTracker._populate_assigned_resources``, the same in Nova 32 to 34), where a fresh claim
may not be saved yet; Placement has been seen to let one allocation too many through under load;
after an instance was deleted while its host was down its domain still runs; and libvirt starts two
containers with one device node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any

from oslo_log import log as logging

from nova_gpu.core import device, exception
from nova_gpu.core.device import Device
from nova_gpu.virt.usage.snapshot import Assignment, Claim, Named, Snapshot, State

if TYPE_CHECKING:  # it imports Nova, of which this module needs nothing
    from nova_gpu.virt.usage.records import Records

LOG = logging.getLogger(__name__)

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
        """What is known now, without the claims whose time is over"""
        found, now = self._now, self._clock()
        claims = {each: claim for each, claim in found.claims.items() if claim.until > now}
        return _with(found, claims=claims) if len(claims) < len(found.claims) else found

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
        """*devices* leave the pool for *timeout_s* at most; *back*, of the same claim, return.

        :param assigned: the set that the tracker is about to add them to
        """
        since = self._clock()
        claim = Claim(since, since + timeout_s, assigned)
        with self._lock:
            claims = _without(self._now.claims, back) | dict.fromkeys(devices, claim)
            self._now = _with(self._now, claims=claims)

    def compare(self, unassigned: Collection[Device], assigned: Set[Any]) -> None:
        """Returns to the pool what the tracker has released, and logs what it may have forgotten.

        :param assigned: the tracker's set of ``objects.Resource``, now
        :param unassigned: the other devices of the same provider
        """
        if not self._now.claims:
            return
        known = {device.parse(each.identifier) for each in assigned}
        with self._lock:
            claims = dict(self._now.claims)
            for each in known & claims.keys():
                claims[each] = dataclasses.replace(claims[each], assigned=assigned)
            missing = claims.keys() & set(unassigned)
            released = {each for each in missing if claims[each].assigned is assigned}
            self._now = _with(self._now, claims=_without(claims, released))
        for each in missing - released:
            _log_forgotten(each, claims[each], self._clock())

    # Starts

    @contextlib.contextmanager
    def hold(
        self,
        instance_uuid: str,
        devices: frozenset[Device],
        look: Callable[[], Named],
        kept: frozenset[Device] = frozenset(),
    ) -> Iterator[None]:
        """Reserve *devices* for the instance while a guest is started with them, and until libvirt
        has said afterwards whether it names them.

        :param look: asks libvirt which devices the domains name now, and notes it
            (:meth:`saw_domains`); raises DomainsUnreadable
        :param kept: what else the guest has, that Nova counts for it in another way than ours
        :raises DeviceUnavailable: when another start or domain has one of them
        :raises DomainsUnreadable: when libvirt does not say
        """
        start = Assignment(instance_uuid, devices | kept)
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
            before = self._now.kept.get(instance_uuid)
            now = _not_asking(self._now, start, devices)
            given = {instance_uuid: Assignment(instance_uuid, devices)} if devices else {}
            self._now = _with(
                now, starting=(*now.starting, start), last_starts={**now.last_starts, **given}
            )
        try:
            yield
        finally:
            self._end(start, before, _answers(look))

    def _end(self, start: Assignment, before: Assignment | None, is_seen: bool) -> None:
        """:param before: what was kept for the instance when the start began"""
        with self._lock:
            now = self._now
            is_back = now.kept.get(start.instance_uuid) is before
            self._now = _with(
                now,
                starting=tuple(each for each in now.starting if each is not start),
                unseen=now.unseen if is_seen else (*now.unseen, start),
                kept=_without(now.kept, [start.instance_uuid]) if is_back else now.kept,
            )

    def keep(self, instance_uuid: str, devices: Collection[Device]) -> None:
        """Reserve *devices* until the instance is started with them or is no longer here."""
        kept = {instance_uuid: Assignment(instance_uuid, frozenset(devices))}
        with self._lock:
            self._now = _with(self._now, kept={**self._now.kept, **kept})

    def let_go(self, instance_uuid: str) -> None:
        """Stop keeping devices for their instance."""
        with self._lock:
            self._now = _with(self._now, kept=_without(self._now.kept, [instance_uuid]))

    # Between two guests

    def was_used(self, devices: Iterable[Device]) -> None:
        """A guest gets them now, or had them before this service was started."""
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
                    uuid: Assignment(uuid, each.devices - {wanted})
                    if wanted in each.devices
                    else each
                    for uuid, each in now.last_starts.items()
                },
                records=now.records and now.records.without(str(wanted)),
            )

    # What libvirt and the database say

    def saw_domains(
        self, named: Named, reached: Named | None = None, since: Snapshot | None = None
    ) -> None:
        """The devices that the domains name, by the domain's uuid.

        :param reached: those of them that are not the domain's own
        :param since: what was known when libvirt was asked; by default what is known now. Of starts
            that ended later it has said nothing
        """
        asked = (since or self._now).unseen
        with self._lock:
            self._now = _with(
                self._now,
                domains=dict(named),
                reached={uuid: each for uuid, each in (reached or {}).items() if each},
                unseen=tuple(each for each in self._now.unseen if each not in asked),
                used=self._now.used.union(*named.values()),
            )

    def read_records(self, read: Callable[[Collection[str]], Records]) -> None:
        """Takes what the database counts now.

        A guest that was started before the database was asked is in its answer, or is nobody's
        unless its start or another task of the instance is under way: then a later answer says it.
        Where no instance has a task, every claim from before was started or given up.

        :param read: asks the database, given the uuids of the domains that name devices
        """
        before, asked = self._now, self._clock()
        records = read({uuid for uuid, named in before.domains.items() if named})
        with self._lock:
            now = _with(self._now, records=records)
            claims = now.claims
            if not records.busy:
                claims = {each: claim for each, claim in claims.items() if claim.since >= asked}
            settled = {
                uuid
                for uuid, each in before.last_starts.items()
                # Another start of the same instance, since then, is another assignment.
                if now.last_starts.get(uuid) is each
                and not now.is_starting(uuid)
                and (uuid not in records.busy or each.devices <= now.counted_for(uuid))
            }
            gone = {
                uuid
                for uuid, each in before.kept.items()
                if now.kept.get(uuid) is each and uuid not in records.counted
            }
            is_first = self._now.records is None
            self._now = _with(
                now,
                claims=claims,
                last_starts=_without(now.last_starts, settled),
                kept=_without(now.kept, gone),
                # What was before this service is not known: an instance's card may have been used.
                used=now.used | now.counted() if is_first else now.used,
            )


_with = dataclasses.replace


def _without(mapping: Mapping[Any, Any], keys: Collection[Any]) -> dict[Any, Any]:
    return {key: each for key, each in mapping.items() if key not in keys}


def _not_asking(now: Snapshot, start: Assignment, claimed: Collection[Device]) -> Snapshot:
    """*start* has its answer: it holds what was claimed for it, or gives the claim up."""
    asking = tuple(each for each in now.asking if each is not start)
    return _with(now, asking=asking, claims=_without(now.claims, claimed))


def _answers(look: Callable[[], Named]) -> bool:
    try:
        look()
    except exception.DomainsUnreadable as error:
        LOG.error("%s. What was known before is kept.", error)
        return False
    return True


def _refuse(now: Snapshot, wanted: frozenset[Device], instance_uuid: str) -> None:
    """:raises DeviceUnavailable: where another instance has one of *wanted*, or it is being cleaned

    Of those that domains name libvirt is asked anew before a guest is started.
    """
    for each in sorted(device.clashing(wanted, now.cleaning), key=str):
        raise exception.DeviceUnavailable(
            str(each), "it is being cleaned of its last guest", "try again when it is done"
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
            "GPU %s is kept from a claim: %d s ago it was handed out to another, which Nova's "
            "resource tracker does not know any more and whose guest is not being started. It can "
            "be claimed in %d s at the latest ([gpu]claim_grace_period).",
            wanted,
            now - claim.since,
            claim.until - now + 1,
        )
