# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu plan FLAVOR``, ``gpu drain HOST`` and ``gpu defrag``: moves that make room."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from osc_lib import exceptions

from nova_gpu.core import exception, names, printable
from nova_gpu.core.flavor import request_group
from nova_gpu_fleet.core import names as fleet_names
from osc_gpu import base_command, flavors, hosts, rest
from osc_gpu.resource_request import Size
from osc_gpu_fleet import host_closing, instances, moves, nodes
from osc_gpu_fleet.planning import plan
from osc_gpu_fleet.planning.fleet import Fleet, Move, Need, Plan, Way

_COLUMNS = ("Step", "Server", "Name", "From", "To", "Reason", "Cost", "Command")
# Older microversions do not permit a host for a cold migration, and the client uses 2.1 by default.
_MIGRATE = "openstack --os-compute-api-version 2.56 server migrate"
# How many of the instances that stay are named
_NAMED = 5
_OWN_COPY = (
    "each instance has a copy of its flavor, which openstack flavor set does not change: resize it "
    "(openstack server resize) to a flavor made with openstack gpu flavor create --move cold"
)
_KINDS = {names.RESOURCE_CLASS: "GPUs", names.VGPU_RESOURCE_CLASS: "vGPUs"}
# The longest time for one move, because memory or disks of a guest take their time
_MOVE_S = 3600

_Table = tuple[Sequence[str], Iterable[tuple[Any, ...]]]


class _Planner(base_command.Lister):
    """A command that prints a plan of migrations, and carries it out with --apply."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--apply",
            action="store_true",
            help="Make the moves, one after the other, and confirm cold migrations",
        )
        parser.add_argument(
            "--move-timeout",
            metavar="<seconds>",
            type=base_command.seconds,
            default=_MOVE_S,
            help=f"Seconds to wait for the end of each move (default: {_MOVE_S})",
        )
        return parser

    def begin(self, parsed_args: argparse.Namespace) -> Any:
        """Return the connection; with --apply confirm first the moves that a killed run left."""
        connection = self.connection(parsed_args)
        if parsed_args.apply:
            moves.finish(connection, self.say, parsed_args.move_timeout)
        return connection

    def table(self, parsed_args: argparse.Namespace, connection: Any, proposal: Plan) -> _Table:
        """Return the table of a plan's moves; with --apply make the moves first."""
        services = hosts.services(connection)
        if parsed_args.apply:
            anew = self.connection(parsed_args)
            moves.make(anew, proposal.moves, services, self.say, parsed_args.move_timeout)
        return _COLUMNS, list(_rows(proposal.moves, services))


class MakeRoom(_Planner):
    """Show the fewest moves that make room for instances of a flavor.

    Without --apply it moves nothing.

    For administrators.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("flavor", metavar="<flavor>", help="Flavor (name or ID)")
        parser.add_argument(
            "--count",
            metavar="<count>",
            type=count,
            default=1,
            help="Number of instances to make room for (default: 1)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> _Table:
        connection = rest.CachedConnection(self.begin(parsed_args))
        (flavor,) = flavors.read(connection, [parsed_args.flavor])
        need, fleet = instances.need_of(connection, flavor), instances.read(connection)
        if why := _why_never(connection, flavor):
            raise exceptions.CommandError(f"no moves make room for {flavor.name}: {why}")
        count = parsed_args.count
        place_plan = plan.place(fleet, need, count)
        have = plan.places(fleet, need)
        if not place_plan.reached:
            why = _why_not(fleet, plan.needed(need, count)) or _too_few_fit(fleet, need, count)
            raise exceptions.CommandError(
                f"{_not_found(place_plan)} make room for {count} of {flavor.name}; there is room "
                f"for {have} now{why}"
            )
        if place_plan.moves:
            self.say(f"{flavor.name}: room for {have} now; for {count} after {_moves(place_plan)}")
        else:
            self.say(f"{flavor.name}: room for {have} now; no move is needed.")
        return self.table(parsed_args, connection, place_plan)


class Drain(_Planner):
    """Show the fewest moves after which no instance has GPUs of a host.

    Without --apply and --undo it changes nothing.

    With --apply no new instance gets GPUs of the host from then on, until --undo. For
    administrators.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("host", metavar="<host>", help="Host, as gpu host list names it")
        parser.add_argument(
            "--undo",
            action="store_true",
            help="Let new instances have GPUs of the host again; nothing is moved",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> _Table:
        host = parsed_args.host
        if parsed_args.undo and parsed_args.apply:
            raise exceptions.CommandError(
                f"--apply drains {host} and --undo ends that; give only one"
            )
        anew = self.begin(parsed_args)
        if parsed_args.undo:
            host_closing.undrain(anew, _node(anew, host))
            self.say(f"{host}: new instances get GPUs of it again.")
            return _COLUMNS, []
        if not parsed_args.apply:
            return self._planned(parsed_args)
        host_closing.drain(anew, _node_with_gpus(anew, host))
        self.say(
            f"{host}: no new instance gets GPUs of it, until openstack gpu drain {host} --undo"
        )
        # Instances that get GPUs from now on are on other hosts, so the fleet is read afterwards.
        return self._planned(parsed_args)

    def _planned(self, parsed_args: argparse.Namespace) -> _Table:
        connection = rest.CachedConnection(self.connection(parsed_args))
        fleet, host = instances.read(connection), parsed_args.host
        if host not in (there := [host.name for host in fleet.hosts]):
            raise _no_such_host(host, len(there))
        drain_plan = plan.drain(fleet, host)
        if not drain_plan.reached:
            raise exceptions.CommandError(
                f"{_not_found(drain_plan)} empty {host}"
                f"{_why_not(fleet, plan.held(fleet, host), host)}"
            )
        if drain_plan.moves:
            self.say(f"{host}: empty after {_moves(drain_plan)}")
        else:
            self.say(f"{host}: no instance has GPUs of it.")
        return self.table(parsed_args, connection, drain_plan)


class Defragment(_Planner):
    """Show the fewest moves that make the most room for instances of the largest flavor.

    Without --apply it moves nothing.

    For administrators.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--flavor",
            metavar="<flavor>",
            help="Flavor (name or ID) to make room for (default: the one with most GPUs that a "
            "host has)",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> _Table:
        connection = rest.CachedConnection(self.begin(parsed_args))
        if parsed_args.flavor:
            (flavor,) = flavors.read(connection, [parsed_args.flavor])
        else:
            flavor = _largest(connection)
        need, fleet = instances.need_of(connection, flavor), instances.read(connection)
        defrag_plan = plan.defrag(fleet, need)
        have = plan.places(fleet, need)
        if defrag_plan.moves:
            after = plan.places_after(fleet, need, defrag_plan)
            self.say(f"{flavor.name}: room for {have} now; for {after} after {_moves(defrag_plan)}")
        else:
            self.say(
                f"{flavor.name}: room for {have} now; {_not_found(defrag_plan)} make room for more."
            )
        return self.table(parsed_args, connection, defrag_plan)


def _node(connection: Any, host: str) -> str:
    """Return the uuid of the compute node called *host*, with GPUs or without."""
    uuids = nodes.by_name(connection)
    if host not in uuids:
        raise exceptions.CommandError(f"Nova has no host called {host}")
    return uuids[host]


def _node_with_gpus(connection: Any, host: str) -> str:
    """Return the uuid of the compute node called *host*, if it has GPUs."""
    roots = {gpu_provider["root_provider_uuid"] for gpu_provider in hosts.gpu_providers(connection)}
    named = {name: uuid for name, uuid in nodes.by_name(connection).items() if uuid in roots}
    if host not in named:
        raise _no_such_host(host, len(named))
    return named[host]


def _no_such_host(host: str, there: int) -> exceptions.CommandError:
    return exceptions.CommandError(
        f"no host with GPUs is called {host}; see openstack gpu host list or gpu group list for "
        f"the hosts with GPUs ({there} in all)"
    )


def _largest(connection: Any) -> Any:
    """Return the flavor with the most whole GPUs, and the first by name if several have as many.

    Flavors that require GPUs near one another are left out, as no plan can be made for them, and
    those that no host can hold.
    """
    sizes = []
    for flavor in flavors.read(connection):
        try:
            whole = flavors.request_of(flavor).whole
        except exception.InvalidExtraSpec:
            continue
        if whole and not instances.requires_topology(whole):
            sizes.append((-whole.count, flavor.name, flavor.id, flavor))
    for *_, flavor in sorted(sizes, key=lambda size: size[:3]):
        with contextlib.suppress(exceptions.CommandError):  # no plan can be made for it
            if not _why_never(connection, flavor):
                return flavor
    raise exceptions.CommandError(
        f"no flavor asks for whole GPUs, without {names.TOPOLOGY}, that a host has; name one with "
        "--flavor"
    )


def _why_never(connection: Any, flavor: Any) -> str:
    return hosts.why_never(connection, Size.of(flavor), flavors.request_of(flavor))


def _rows(moves: Iterable[Move], services: Any) -> Iterator[tuple[Any, ...]]:
    for step, move in enumerate(moves, 1):
        live = " --live-migration" if move.way is Way.LIVE else ""
        there = services.get(move.destination, move.destination)
        run = f"{_MIGRATE}{live} --host {there} {move.instance.uuid}"
        who = move.instance.uuid, move.instance.name
        yield step, *who, move.source, move.destination, move.reason, move.way.in_words, run


def _why_not(fleet: Fleet, needed: Mapping[str, int], host: str | None = None) -> str:
    """Return further lines: why no moves make room for *needed* GPUs, or empty *host*.

    Instances that may not be moved are no reason where too few GPUs are free: moves free none.
    """
    closed = [
        f"{other.name} takes no instance: {other.unusable}"
        for other in fleet.hosts
        if other.unusable and other.name != host
    ]
    hosts_up = "all other hosts that are up" if host else "all hosts that are up"
    short = [
        f"not enough {_KINDS[of]} are free: {count} needed, {free} free in {hosts_up}"
        for of, count in needed.items()
        if not fleet.shared and (free := plan.free(fleet, of, host)) < count
    ]
    return listed(short) + listed(closed) + ("" if short else _staying(fleet, host))


def _too_few_fit(fleet: Fleet, need: Need, count: int) -> str:
    """Return a further line if fewer GPUs are free that fit than *count* instances take."""
    wanted, free = sum(part.count for part in need.groups) * count, plan.fitting(fleet, need)
    text = f"of the GPUs that the flavor asks for {free} are free, and {wanted} needed"
    return listed([text] if free < wanted else [])


def _staying(fleet: Fleet, host: str | None) -> str:
    """Return further lines: which instances may not be moved, and why; of *host* or all."""
    staying = [
        instance
        for instance in fleet.instances
        if instance.way is None and host in (None, instance.host)
    ]
    who = [f"{instance.name or instance.uuid} stays: {instance.stays}" for instance in staying]
    by_flavor = any(fleet_names.MOVE in instance.stays for instance in staying)
    return listed(who) + listed([_OWN_COPY] * by_flavor)


def listed(texts: Sequence[str]) -> str:
    """Return further lines: the first five *texts*, and how many more there are."""
    more = [f"and {len(texts) - _NAMED} more"] if len(texts) > _NAMED else []
    return "".join(
        f"\n  {printable.printable(text, printable.MOST_OF_A_LINE)}"
        for text in (*texts[:_NAMED], *more)
    )


def _moves(proposal: Plan) -> str:
    """Return the end of a sentence: the number of moves, and if so that no plan has fewer."""
    count = len(proposal.moves)
    moves = "1 move." if count == 1 else f"{count} moves."
    return f"{moves} No plan has fewer." if proposal.proven else moves


def _not_found(proposal: Plan) -> str:
    return "no moves" if proposal.proven else "no moves were found that"


def count(text: str) -> int:
    """Parse an option's number of instances."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= request_group.MAX_GPUS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of instances from 1 to {request_group.MAX_GPUS}"
        )
    return int(text)
