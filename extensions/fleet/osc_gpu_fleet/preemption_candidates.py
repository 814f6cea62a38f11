# SPDX-License-Identifier: Apache-2.0
"""Preemptible instances: which may be preempted, how they are notified, and how they end.

A *notice* is two items of an instance's metadata: when its GPUs are taken, and for which servers,
the *takers*. Guests read it, and it is the only record of a preemption in progress.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from openstack import exceptions as sdk_exc
from osc_lib import exceptions
from oslo_utils import timeutils, uuidutils

from nova_gpu.core import exception
from nova_gpu.core.flavor.parsers import OnStop
from nova_gpu.core.names import RESOURCE_CLASSES
from nova_gpu.core.printable import printable
from nova_gpu_fleet.core import names
from nova_gpu_fleet.core.preemptible import End, Preemptible, is_preemptible
from osc_gpu import flavors, rest, servers
from osc_gpu_fleet import host_closing, instances, nodes, retries
from osc_gpu_fleet.planning import victims
from osc_gpu_fleet.planning.fleet import Fleet, Instance, Need
from osc_gpu_fleet.planning.room import Room

_DELETED = ("deleting", "soft-deleting")
_NOTICED_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """An instance that may be preempted.

    It has had its GPUs since ``since``; ``due`` is when its notice says that they are taken, and
    ``None`` without a notice. ``unsure_s`` is 0 if ``since`` is certain. Otherwise a later start
    may have given it its GPUs, and it may be preempted only once it has had them for ``unsure_s``
    seconds.
    """

    server: Any
    instance: Instance
    end: End
    since: datetime.datetime
    due: datetime.datetime | None
    unsure_s: int = 0

    @property
    def cost(self) -> int:
        """The cost of preemption, by which candidates are ranked.

        It is 0 after a notice, 1 for an instance that does not run, 2 to stop and 3 to delete one.
        """
        if self.due:
            return 0
        if self.server.status != "ACTIVE":
            return 1
        return {End.STOP: 2, End.DELETE: 3}[self.end]

    @property
    def in_words(self) -> str:
        gpus = "1 GPU" if self.instance.gpus == 1 else f"{self.instance.gpus} GPUs"
        return (
            f"{self.server.name} ({self.server.id}) of project {self.server.project_id}, "
            f"{gpus} on {self.instance.host}"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Candidates:
    """The preemptible instances of a fleet.

    ``by_uuid`` has those that may be preempted. ``leaving`` are those that are being stopped or
    deleted already, with what that frees. ``stays`` says why each other one may not be preempted.
    """

    by_uuid: Mapping[str, Candidate]
    leaving: tuple[Instance, ...]
    stays: tuple[str, ...]

    @property
    def costs(self) -> Mapping[str, int]:
        """The cost of each candidate, by uuid, in order of preference.

        The candidate whose notice ends first comes first; among those without a notice, the one
        that has had its GPUs for the shortest time.
        """
        order = sorted(
            self.by_uuid.values(),
            key=lambda candidate: (
                candidate.due or datetime.datetime.max,
                timeutils.utcnow() - candidate.since,
                candidate.server.id,
            ),
        )
        return {candidate.server.id: candidate.cost for candidate in order}

    def freed(self, fleet: Fleet) -> Fleet:
        """Return the fleet as it is once the ``leaving`` instances have freed their resources.

        Each candidate in it holds only what its own preemption would free.
        """
        by_uuid = self.by_uuid
        made = tuple(
            _stopped(instance)
            if instance.uuid in by_uuid and by_uuid[instance.uuid].end is End.STOP
            else instance
            for instance in fleet.instances
        )
        fleet = dataclasses.replace(fleet, instances=made)
        return victims.without(fleet, self.leaving)


def need_of(connection: rest.CachedConnection, flavor: Any) -> Need:
    """Return the resources that one instance of a flavor takes of its host.

    :raises CommandError: if the flavor is preemptible itself, or no plan can be made for it
    """
    if is_preemptible(flavors.request_of(flavor).extra_specs):
        raise exceptions.CommandError(
            f"{flavor.name} is preemptible itself ({names.PREEMPTIBLE}): no instance is "
            "preempted for it"
        )
    return instances.need_of(connection, flavor)


def room(
    connection: rest.CachedConnection, need: Need, projects: Collection[str]
) -> Mapping[str, int]:
    """Return how many more instances like *need* fit on each host, by name, if all candidates left.

    :param projects: the IDs of the projects whose instances may be preempted
    """
    fleet = instances.read(connection)
    candidates = read(connection, fleet, projects, {}, 0, {})
    candidates = verified(connection, candidates, candidates.by_uuid)
    fleet = candidates.freed(fleet)
    fleet = victims.without(
        fleet, [instance for instance in fleet.instances if instance.uuid in candidates.by_uuid]
    )
    then = Room(fleet)
    return {host.name: then.fitting(need, number) for number, host in enumerate(fleet.hosts)}


def _stopped(instance: Instance) -> Instance:
    """Return the instance with only the resources that a stop frees, its GPUs.

    In Placement a stopped instance keeps its processors, memory and disk.
    """
    return dataclasses.replace(instance, need=dataclasses.replace(instance.need, amounts=()))


def read(
    connection: rest.CachedConnection,
    fleet: Fleet,
    projects: Collection[str],
    notices: Mapping[str, datetime.datetime],
    notice_s: float,
    barred: Mapping[str, str],
) -> Candidates:
    """Return the preemptible instances of the fleet, and which of them may be preempted.

    :param notices: when an instance's GPUs are taken, by uuid, for notices that this process sent
    :param notice_s: the seconds from a notice to the end of an instance
    :param barred: why an instance may not be preempted, by uuid, in addition to what is read
    :raises NotPermitted: as :func:`osc_gpu_fleet.instances.read`
    """
    with rest.clean_refusals("Nova"):
        listed = connection.compute.servers(details=True, all_projects=True)
    up, now = nodes.up(connection), timeutils.utcnow()
    there = {instance.uuid: instance for instance in fleet.instances}
    candidates: dict[str, Candidate] = {}
    leaving, stays = [], []
    for server in listed:
        instance = there.get(server.id)
        if instance is None or not is_preemptible(servers.request_of(server).extra_specs):
            continue
        try:
            preemptible = Preemptible.of(servers.request_of(server).extra_specs)
        except exception.InvalidExtraSpec as e:
            stays.append(f"{server.name} stays: its flavor cannot be used: {e}")
            continue
        assert preemptible
        is_up = instance.host in up
        if is_up and (gone := _leaves(server, instance, preemptible)):
            leaving.append(gone)
            continue
        reason = "" if is_up else "its host's compute service is down"
        reason = (
            reason or barred.get(server.id) or _obstacle(server, instance, preemptible, projects)
        )
        if not reason:
            due = notices.get(server.id) or _plausible_time(server, now, notice_s)
            since = had_since(connection, server) if due else _time(server.launched_at)
            if due and due <= since:
                due = None  # it was stopped and got new GPUs after that
            # A notice holds: the instance buys no time by a stop and a start.
            reason = "" if due else _too_recent(now, since, preemptible.least_s)
        if reason:
            stays.append(f"{server.name} stays: {reason}")
            continue
        unsure_s = (
            0 if due or _is_unchanged(server, now, preemptible.least_s) else preemptible.least_s
        )
        candidates[server.id] = Candidate(server, instance, preemptible.end, since, due, unsure_s)
    return Candidates(candidates, tuple(leaving), tuple(stays))


def verified(connection: Any, candidates: Candidates, uuids: Iterable[str]) -> Candidates:
    """Return the candidates without those of *uuids* that got their GPUs too recently.

    ``since`` is then certain for the others of *uuids*. Only a server's actions say when it was
    last started, and Nova lists them for one server at a time.
    """
    by_uuid, stays, now = dict(candidates.by_uuid), list(candidates.stays), timeutils.utcnow()
    for candidate in [by_uuid[uuid] for uuid in uuids if by_uuid[uuid].unsure_s]:
        since = had_since(connection, candidate.server)
        if reason := _too_recent(now, since, candidate.unsure_s):
            del by_uuid[candidate.server.id]
            stays.append(f"{candidate.server.name} stays: {reason}")
        else:
            by_uuid[candidate.server.id] = dataclasses.replace(candidate, since=since, unsure_s=0)
    return dataclasses.replace(candidates, by_uuid=by_uuid, stays=tuple(stays))


def _too_recent(now: datetime.datetime, since: datetime.datetime, least_s: int) -> str:
    """Return why a server keeps GPUs that it has had for less than *least_s*, or empty."""
    has_had = (now - since).total_seconds()
    if has_had >= least_s:
        return ""
    return f"it has had its GPUs for {has_had:.0f} s, and keeps them {least_s} s"


def _is_unchanged(server: Any, now: datetime.datetime, least_s: int) -> bool:
    """Return whether Nova changed nothing of the server, as by a start, for *least_s* seconds."""
    return bool(server.updated_at) and not _too_recent(now, _time(server.updated_at), least_s)


def _leaves(server: Any, instance: Instance, preemptible: Preemptible) -> Instance | None:
    """Return the instance with only the resources that it frees anyway, ``None`` if it keeps all.

    It frees GPUs while it is being deleted, or stopped with a flavor that releases them.
    """
    if server.task_state in _DELETED:
        return instance
    stops = server.task_state == "powering-off" or server.status == "SHUTOFF"
    if stops and preemptible.end is End.STOP and _gives_back(server, instance):
        return _stopped(instance)
    return None


def _gives_back(server: Any, instance: Instance) -> bool:
    """Return whether a stop frees all of its GPUs: they are as many as its flavor requests."""
    return sum(request.count for request in servers.requests_of(server)) == instance.gpus


def _obstacle(
    server: Any, instance: Instance, preemptible: Preemptible, projects: Collection[str]
) -> str:
    """Return why the server may not be preempted, however long it has had its GPUs; or empty."""
    if server.project_id not in projects:
        return f"its project {server.project_id} is not one that --project names"
    if server.is_locked:
        return "it is locked"
    if server.task_state:
        return f"it is busy: {server.task_state}"
    if server.status not in ("ACTIVE", "SHUTOFF"):
        return f"its status is {server.status}"
    if preemptible.end is End.STOP and not _gives_back(server, instance):
        return "it does not have what its flavor asks for, so a stop would give nothing back"
    return ""


def had_since(connection: Any, server: Any) -> datetime.datetime:
    """Return when the server last got its GPUs, in UTC: at its launch, or at its last start.

    A start gives it GPUs only if its flavor releases them at a stop; other instances keep theirs.
    """
    if not servers.request_of(server).gives_back(None, OnStop.KEEP):
        return _time(server.launched_at)
    with rest.clean_refusals("Nova"):
        actions = connection.compute.server_actions(server.id)
    times = [action.start_time for action in actions if action.action == "start"]
    return max(map(_time, (server.launched_at, *times)))


def _time(text: str) -> datetime.datetime:
    """Parse Nova's text of a time in UTC into a naive datetime, as timeutils.utcnow returns."""
    return timeutils.normalize_time(timeutils.parse_isotime(text))


def _plausible_time(
    server: Any, now: datetime.datetime, notice_s: float
) -> datetime.datetime | None:
    """Return when a server's GPUs are taken by its notice, in UTC.

    Return ``None`` without a notice, or if that was more than *notice_s* seconds ago. The server's
    users can write metadata, too, so the time is at most *notice_s* seconds from now.
    """
    notice = datetime.timedelta(seconds=notice_s)
    due = noticed_time(server)
    return min(due, now + notice) if due and now - notice < due else None


def noticed_time(server: Any) -> datetime.datetime | None:
    """Return when GPUs are taken, in UTC, by a notice in the form that :func:`notify` writes."""
    text = (server.metadata or {}).get(names.PREEMPT_AT, "")
    if not _NOTICED_TIME.fullmatch(text):
        return None
    with contextlib.suppress(ValueError):
        return datetime.datetime.fromisoformat(text.removesuffix("Z"))
    return None


def in_utc(time: datetime.datetime) -> str:
    return f"{time.isoformat(timespec='seconds')}Z"


def notify(connection: Any, server: Any, due: datetime.datetime, takers: str) -> None:
    """Write a notice into the server's metadata: when its GPUs are taken, and for *takers*."""
    metadata = {names.PREEMPT_AT: in_utc(due), names.PREEMPT_FOR: takers}
    with rest.clean_refusals("Nova"):
        connection.compute.set_server_metadata(server.id, **metadata)


def withdraw_notice(connection: Any, server: Any) -> None:
    """Remove the notice from the server's metadata, if there is one."""
    keys = (server.metadata or {}).keys() & {names.PREEMPT_AT, names.PREEMPT_FOR}
    with rest.clean_refusals("Nova"):
        for key in keys:
            with contextlib.suppress(sdk_exc.NotFoundException):  # its user, or another run, did
                connection.compute.delete_server_metadata(server.id, [key])


def takers(connection: Any, server: Any) -> Iterator[str]:
    """Yield a text about each server for which the GPUs of *server* are or were taken.

    It names the server and its project if the user may see that server, else it is the uuid.
    """
    text = (server.metadata or {}).get(names.PREEMPT_FOR, "")
    for name in filter(None, text.split(",")):
        taker = _deleted_or_not(connection, name) if uuidutils.is_uuid_like(name) else None
        yield (
            f"{taker['name']} ({name}) of project {taker['tenant_id']}"
            if taker
            else printable(name)
        )


def _deleted_or_not(connection: Any, uuid: str) -> Any:
    """Return Nova's record of a server, even of a deleted one, if the user may see it."""
    for deleted in (False, True):
        url = f"/servers/detail?all_tenants=true&uuid={uuid}&deleted={deleted}"
        answer = connection.compute.get(url, raise_exc=False)
        if answer.status_code == 200 and (rows := answer.json()["servers"]):
            return rows[0]
    return None


def end(connection: Any, chosen: Candidate, takers: str) -> None:
    """Stop or delete the instance as its flavor says, and record *takers* in its metadata.

    :raises CommandError: if it has changed since the plan, or Nova refuses that
    """
    was = chosen.server
    with rest.clean_refusals("Nova"):
        server = connection.compute.get_server(was.id)
        state = server.status, server.task_state, server.compute_host, server.launched_at
        if state != (was.status, None, was.compute_host, was.launched_at) or server.is_locked:
            raise exceptions.CommandError(
                f"{chosen.in_words}: left alone, because it has changed since the plan"
            )
        # The takers may have changed since the notice, because each retry of a request is a new
        # server. If the metadata has no room for them, the GPUs are taken all the same.
        with contextlib.suppress(sdk_exc.HttpException):
            connection.compute.set_server_metadata(server, **{names.PREEMPT_FOR: takers})
        if chosen.end is End.DELETE:
            connection.compute.delete_server(server, force=True)  # also where Nova defers that
        else:
            connection.compute.stop_server(server)


def wait(connection: Any, ended: Collection[Candidate], patience_s: float) -> None:
    """Wait until the GPUs of the instances *ended* are free in Placement."""

    def left() -> list[Candidate]:
        return [candidate for candidate in ended if _has_gpus(connection, candidate.server.id)]

    for held in retries.polled(left, patience_s):
        if not held:
            return
    raise exceptions.CommandError(
        f"{held[0].in_words}: Placement still counts its GPUs {patience_s:g} s after its stop or "
        f"deletion began; see openstack server event list {held[0].server.id}"
    )


class ReservedHosts:
    """Hosts that one run closes to preemptible instances, so that its requests get the room."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._needs: dict[str, Need] = {}

    def __bool__(self) -> bool:
        return bool(self._needs)

    def keep(self, needs: Mapping[str, Need], until: datetime.datetime) -> None:
        """Close the hosts in *needs* to preemptible instances until the time *until*, in UTC.

        :param needs: what one of the instances takes that get the room on a host, by its name
        """
        uuids = nodes.by_name(self._connection)
        for host, need in needs.items():
            host_closing.keep(self._connection, uuids[host], until)
            self._needs[host] = need

    def open(self, fleet: Fleet) -> None:
        """Open the closed hosts again whose room has been taken by now."""
        room = Room(fleet)
        taken = {
            host.name
            for number, host in enumerate(fleet.hosts)
            if host.name in self._needs and not room.fitting(self._needs[host.name], number)
        }
        if taken:
            uuids = nodes.by_name(self._connection)
            host_closing.unkeep(self._connection, (uuids[name] for name in taken & uuids.keys()))
            self._needs = {name: need for name, need in self._needs.items() if name not in taken}


def _has_gpus(connection: Any, uuid: str) -> bool:
    allocations = rest.placement(connection, f"/allocations/{uuid}")["allocations"]
    return any(
        allocation["resources"].keys() & {*RESOURCE_CLASSES} for allocation in allocations.values()
    )
