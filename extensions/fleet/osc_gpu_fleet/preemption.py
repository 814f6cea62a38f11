# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu preempt``: takes GPUs of preemptible instances for requests that find none."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from osc_lib import exceptions
from oslo_utils import timeutils

from nova_gpu.core.scheduling.capacity import Host
from nova_gpu_fleet.core.closed_hosts import RESERVED
from osc_gpu import base_command, closed_hosts, flavors, projects, rest
from osc_gpu_fleet import (
    host_closing,
    instances,
    move_commands,
    nodes,
    preemption_candidates,
    retries,
    unserved,
)
from osc_gpu_fleet.planning import plan, victims
from osc_gpu_fleet.planning.fleet import Fleet, Need
from osc_gpu_fleet.planning.victims import VictimChoice
from osc_gpu_fleet.preemption_candidates import Candidate, Candidates

_COLUMNS = ("Server", "Name", "Project", "Host", "GPUs", "End", "At", "For")
_NOTICE_S = 600
_SINCE_S = 1800
_KEEP_S = 600
# The longest time between two readings while notified instances wait for their end
POLL_S = 20.0
# The least time between two readings
_SHORT_S = 1.0
# The longest time for the end of victims: Nova gives each guest a minute to shut down, and cards
# are cleaned.
_PATIENCE_S = 900.0

_Table = tuple[Sequence[str], Iterable[tuple[Any, ...]]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Wanted:
    """Equal requests for which GPUs are taken from preemptible instances.

    :param need: what each of them takes of a host
    :param whose: their description in messages
    :param short: their description in a cell of a table
    :param takers: their description in an item of a victim's metadata
    :param at_once: whether all of them need room at once; otherwise as many as possible get it
    :param zone: the availability zone that they require, or empty
    :param host: the node that they require, or empty
    """

    need: Need
    count: int
    whose: str
    short: str
    takers: str
    at_once: bool
    zone: str = ""
    host: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Planned:
    """The plan for equal requests.

    :param have: for how many of them there is room now
    :param choice: the instances to preempt for the others
    :param waits: whether no instance is preempted until the requests have taken the present room
    """

    wanted: _Wanted
    have: int
    choice: VictimChoice
    waits: bool


# A candidate whose notice is over, its end, and the requests that the candidate makes room for
_Ready: TypeAlias = tuple[Candidate, datetime.datetime, _Wanted]


class Preempt(base_command.Lister):
    """Show the fewest preemptible instances whose GPUs make room for a flavor or waiting requests.

    Without --apply it changes nothing. With --apply the instances get a notice, and are stopped or
    deleted when it is over. For administrators.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add = parser.add_argument
        add_seconds = functools.partial(add, metavar="<seconds>", type=base_command.seconds)
        add(
            "flavor",
            metavar="<flavor>",
            nargs="?",
            help=(
                "Flavor (name or ID) to make room for; without one, for all requests that found "
                "no host and are not preemptible themselves"
            ),
        )
        add(
            "--count",
            metavar="<count>",
            type=move_commands.count,
            help="Number of instances of the flavor to make room for (default: 1)",
        )
        projects.add_option(parser, "Project whose preemptible instances may be preempted")
        add_seconds(
            "--since",
            help=f"Without a flavor: the maximum age of a request in seconds (default: {_SINCE_S})",
        )
        add(
            "--apply",
            action="store_true",
            help="Notify the instances, and take their GPUs when the notice is over",
        )
        add_seconds(
            "--notice",
            default=_NOTICE_S,
            help=f"Seconds from the notice to the end of an instance (default: {_NOTICE_S})",
        )
        add_seconds(
            "--keep",
            default=_KEEP_S,
            help="Seconds for which --apply closes the victims' hosts to preemptible instances "
            f"(default: {_KEEP_S})",
        )
        add(
            "--undo",
            action="store_true",
            help="Let preemptible instances have GPUs of all hosts again; preempt none",
        )
        add_seconds(
            "--watch",
            help="With --apply and without a flavor: do not end, and look for requests again after "
            "so many seconds",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> _Table:
        if parsed_args.undo:
            if parsed_args.flavor or parsed_args.apply:
                raise exceptions.CommandError("--undo goes without a flavor, and without --apply")
            connection = self.connection(parsed_args)
            host_closing.unkeep(connection, closed_hosts.by_trait(connection, RESERVED))
            self.say("all hosts are open to preemptible instances")
            return _COLUMNS, []
        if not parsed_args.projects:
            raise exceptions.CommandError("name the --project whose instances may be preempted")
        if parsed_args.watch and (parsed_args.flavor or not parsed_args.apply):
            raise exceptions.CommandError("--watch goes with --apply, and without a flavor")
        if parsed_args.count and not parsed_args.flavor:
            raise exceptions.CommandError(
                "--count goes with a flavor: without one, room is made for all waiting requests"
            )
        if parsed_args.since and parsed_args.flavor:
            raise exceptions.CommandError(
                "--since goes without a flavor: it limits the age of waiting requests"
            )
        connection = self.connection(parsed_args)
        parsed_args.projects = projects.ids(connection, parsed_args.projects)
        run = _Run(connection, parsed_args, self.say)
        if parsed_args.apply:
            run.to_the_end()
        else:
            run.show()
        known = projects.names(connection) if run.rows else {}
        return _COLUMNS, [(*row[:2], projects.cell(row[2], known), *row[3:]) for row in run.rows]


class _Run:
    """One run of the command; ``rows`` are the instances that it preempted, or would preempt."""

    def __init__(
        self, connection: Any, parsed_args: argparse.Namespace, say: Callable[[str], None]
    ) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self._connection, self._args = connection, parsed_args
        self._say = say
        self._last_text = ""
        self._notices: dict[str, datetime.datetime] = {}
        self._past: dict[str, datetime.datetime] = {}
        self._barred: dict[str, str] = {}
        self._reserved_hosts = preemption_candidates.ReservedHosts(connection)
        self._patient_until = time.monotonic() + _PATIENCE_S

    def show(self) -> None:
        short, planned, candidates = self._plan()
        if short:
            raise short
        self.rows = [
            _row(candidate, candidate.due, wanted)
            for candidate, wanted in _chosen(planned, candidates)
        ]

    def to_the_end(self) -> None:
        host_closing.remove_stale(self._connection)
        while True:
            try:
                wait_s = self._step()
            except exceptions.CommandError as e:
                if not self._args.watch:
                    raise
                self._say(str(e))
                wait_s = POLL_S
            if wait_s is None:
                if not self._args.watch:
                    return
                wait_s = self._args.watch
            time.sleep(wait_s)

    def _step(self) -> float | None:
        """Notify new victims, end notified ones, and return the seconds to the next step."""
        short, planned, candidates = self._plan()
        chosen = _chosen(planned, candidates)
        self._withdraw_notices(candidates, {victim.server.id for victim, _ in chosen})
        if short:
            raise short
        now = timeutils.utcnow()
        waiting = {one.uuid for entry in planned if entry.waits for one in entry.choice.victims}
        ready = []
        for victim, wanted in chosen:
            due = victim.due or self._notify(victim, wanted, now)
            if due:
                self._notices[victim.server.id] = due
            if due and due <= now and victim.server.id not in waiting:
                ready.append((victim, due, wanted))
        if ready:
            # Until a victim is gone, no request in between may take its place.
            until = now + datetime.timedelta(seconds=self._args.keep)
            self._reserved_hosts.keep(
                {victim.instance.host: wanted.need for victim, _, wanted in ready}, until
            )
            self._end(ready)
            return 0
        if chosen:
            times = [self._notices.get(victim.server.id, victim.due or now) for victim, _ in chosen]
            return min(POLL_S, max((min(times) - now).total_seconds(), _SHORT_S))
        self._barred.clear()
        if planned and candidates.leaving and time.monotonic() < self._patient_until:
            return retries.POLL_S
        return None

    def _end(self, ready: Iterable[_Ready]) -> None:
        """Stop or delete the instances whose notice is over, and wait until their GPUs are free.

        :raises CommandError: if one of them could not be, after the others were
        """
        taken, failed = [], None
        for victim, due, wanted in ready:
            try:
                preemption_candidates.end(self._connection, victim, wanted.takers)
            except exceptions.CommandError as e:
                failed = e
                continue
            self._say(f"{victim.in_words}: {victim.end.in_words} now, for {wanted.whose}")
            self.rows.append(_row(victim, due, wanted))
            self._notices.pop(victim.server.id, None)
            taken.append(victim)
        preemption_candidates.wait(self._connection, taken, _PATIENCE_S)
        if failed:
            raise failed

    def _plan(self) -> tuple[exceptions.CommandError | None, list[_Planned], Candidates]:
        """Return why a flavor can get no room, or ``None``; the plan; and the candidates."""
        options, snapshot = self._args, rest.CachedConnection(self._connection)
        wanted = list(self._named(snapshot) if options.flavor else self._unserved(snapshot))
        if not wanted and self._last_text and not self._notices and not self._reserved_hosts:
            return None, [], Candidates({}, (), ())  # and no notice is pending
        fleet = instances.read(snapshot)
        self._reserved_hosts.open(fleet)
        candidates = preemption_candidates.read(
            snapshot, fleet, options.projects, self._notices, options.notice, self._barred
        )
        zones = nodes.zones(snapshot) if any(need.zone for need in wanted) else {}
        while True:
            short, planned = self._choose(wanted, fleet, candidates, zones)
            unsure = [victim for victim, _ in _chosen(planned, candidates) if victim.unsure_s]
            if not unsure:
                break
            uuids = [victim.server.id for victim in unsure]
            candidates = preemption_candidates.verified(snapshot, candidates, uuids)
        if not short:
            self._say_once(planned)
        return short, planned, candidates

    def _choose(
        self, needs: Iterable[_Wanted], fleet: Fleet, candidates: Candidates, zones: Any
    ) -> tuple[exceptions.CommandError | None, list[_Planned]]:
        """Return the error or ``None``, as :meth:`_plan` does, and the plan."""
        fleet, costs = candidates.freed(fleet), candidates.costs
        planned, now = [], fleet
        for need in needs:
            there, free = (_within(one, zones, need) for one in (fleet, now))
            have = plan.places(free, need.need)
            # Free room that no request takes may be where the scheduler permits none of these
            # requests: more room would be made there with each new request. So candidates with a
            # notice wait meanwhile.
            waits = bool(have) and not need.at_once
            free_of_charge = {
                uuid: cost for uuid, cost in costs.items() if not cost and self._args.watch
            }
            choice = victims.choose(
                there, need.need, need.count, free_of_charge if waits else costs
            )
            if need.at_once and choice.places < need.count:
                return _short(need, choice, have, candidates), []
            planned.append(_Planned(need, have, choice, waits))
            fleet = victims.after(fleet, need.need, choice)
            # Room that victims of other requests leave is not free until they are gone.
            now = victims.after(now, need.need, victims.choose(free, need.need, need.count, {}))
        return None, planned

    def _say_once(self, planned: Iterable[_Planned]) -> None:
        text = "\n".join(map(_summary, planned)) or "no request waits for GPUs"
        if text != self._last_text:
            self._last_text = text
            self._say(text)

    def _named(self, snapshot: rest.CachedConnection) -> Iterator[_Wanted]:
        (flavor,) = flavors.read(snapshot, [self._args.flavor])
        need, count = preemption_candidates.need_of(snapshot, flavor), self._args.count or 1
        whose = f"{count} of {flavor.name}"
        yield _Wanted(need, count, whose, whose, whose, at_once=True)

    def _unserved(self, snapshot: rest.CachedConnection) -> Iterator[_Wanted]:
        since = timeutils.utcnow() - datetime.timedelta(seconds=self._args.since or _SINCE_S)

        def holders() -> Collection[str]:
            return {instance.uuid for instance in instances.read(snapshot).instances}

        for item in unserved.read(snapshot, since, holders):
            try:
                need = instances.need_of(snapshot, item.flavor, boots_from_volume=item.from_volume)
            except rest.NotPermitted:
                raise
            except exceptions.CommandError:
                continue  # of a flavor that no plan can be made for
            if item.host:
                need = dataclasses.replace(need, amounts=())
            words = item.in_words, item.in_short, item.uuids
            where = {"zone": item.zone, "host": item.host}
            yield _Wanted(need, len(item.servers), *words, at_once=False, **where)

    def _notify(
        self, candidate: Candidate, wanted: _Wanted, now: datetime.datetime
    ) -> datetime.datetime | None:
        """Notify the instance, and return when its GPUs are taken, ``None`` if Nova refuses."""
        due = now + datetime.timedelta(seconds=self._args.notice)
        try:
            preemption_candidates.notify(self._connection, candidate.server, due, wanted.takers)
        except exceptions.CommandError as e:
            self._barred[candidate.server.id] = f"it cannot be notified: {e}"
            self._say(f"{candidate.in_words}: it cannot be notified that its GPUs are taken: {e}")
            return None
        self._say(
            f"{candidate.in_words}: told that it is {candidate.end.in_words} at "
            f"{preemption_candidates.in_utc(due)}, for {wanted.whose}"
        )
        return due

    def _withdraw_notices(self, candidates: Candidates, chosen: set[str]) -> None:
        """Withdraw the notice of each instance that the plan no longer needs.

        Only notices of this run, and expired ones, are withdrawn: another run may need the others.

        :param chosen: the uuids of the instances that the plan needs
        """
        for uuid, candidate in candidates.by_uuid.items():
            is_own = candidate.due and uuid in self._notices
            if uuid not in chosen and (is_own or self._is_over(candidate)):
                try:
                    preemption_candidates.withdraw_notice(self._connection, candidate.server)
                except exceptions.CommandError as e:
                    self._say(f"{candidate.in_words}: it cannot be notified that it stays: {e}")
                    continue
                self._notices.pop(uuid, None)
                self._say(
                    f"{candidate.in_words}: told that it stays, as its GPUs are not needed now"
                )

    def _is_over(self, candidate: Candidate) -> bool:
        """Return whether the run that sent the notice was killed before it took the GPUs.

        The notice then ended longer ago than a notice lasts. One from before the instance's last
        start does not count, because that run had stopped the instance.
        """
        due = preemption_candidates.noticed_time(candidate.server)
        earliest = timeutils.utcnow() - datetime.timedelta(seconds=self._args.notice)
        if due is None or due > earliest or self._past.get(candidate.server.id) == due:
            return False
        if due <= preemption_candidates.had_since(self._connection, candidate.server):
            self._past[candidate.server.id] = due
            return False
        return True


def _chosen(planned: Iterable[_Planned], candidates: Candidates) -> list[tuple[Candidate, _Wanted]]:
    return [
        (candidates.by_uuid[victim.uuid], entry.wanted)
        for entry in planned
        for victim in entry.choice.victims
    ]


def _within(fleet: Fleet, zones: Any, wanted: _Wanted) -> Fleet:
    """Return the fleet with the hosts that *wanted* excludes by zone or host as unusable."""

    def limited(host: Host) -> Host:
        if wanted.host not in ("", host.name):
            return dataclasses.replace(host, unusable=f"it is not {wanted.host}")
        if wanted.zone not in ("", zones.get(host.name)):
            why = f"it is not in the availability zone {wanted.zone}"
            return dataclasses.replace(host, unusable=why)
        return host

    return dataclasses.replace(fleet, hosts=tuple(map(limited, fleet.hosts)))


def _summary(entry: _Planned) -> str:
    count = len(entry.choice.victims)
    text = f"{entry.wanted.whose}: room for {entry.have} now"
    if count:
        one = "1 instance is" if count == 1 else f"{count} instances are"
        text += f"; for {entry.choice.places} after {one} preempted"
        text += ". No smaller number makes this room." if entry.choice.proven else "."
    elif not entry.have:
        text += ", and no preemptible instance makes any."
    return text


def _short(
    need: _Wanted, choice: VictimChoice, have: int, candidates: Candidates
) -> exceptions.CommandError:
    none = "no preemptible instances" if choice.proven else "none were found that"
    return exceptions.CommandError(
        f"{none} make room for {need.whose}; there is room for {have} now, and for "
        f"{choice.places} without those that may be preempted"
        f"{move_commands.listed(candidates.stays)}"
    )


def _row(candidate: Candidate, due: datetime.datetime | None, wanted: _Wanted) -> tuple[Any, ...]:
    server, instance = candidate.server, candidate.instance
    who = server.id, server.name, server.project_id, instance.host, instance.gpus
    whose = base_command.Short(wanted.whose, wanted.short)
    return *who, str(candidate.end), preemption_candidates.in_utc(due) if due else "", whose
