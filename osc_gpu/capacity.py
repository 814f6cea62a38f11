# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu capacity FLAVOR``"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from osc_lib import exceptions
from oslo_utils import timeutils

from nova_gpu.core import exception, names
from nova_gpu.core.flavor.request import FlavorRequest
from nova_gpu.core.placement.inventory import Offer
from nova_gpu.core.scheduling import capacity, reasons, startable
from nova_gpu.core.scheduling.startable import Detail, Startable
from osc_gpu import asking, flavors, hosts, query, rest
from osc_gpu.resource_request import Size

_COLUMNS = ("Host", "Instances", "GPUs Free", "GPUs In Service", "Reason")
_PUBLISHED = ("Flavor", "Instances", "Reason")
_FEW = 4

_Table = tuple[Sequence[str], Iterable[tuple[Any, ...]]]


class ShowCapacity(asking.Lister):
    """Show how many instances of a flavor could boot now, on which host, and why no more.

    It counts what Placement has, on hosts whose compute service is up and enabled. Aggregates,
    images and whatever else the scheduler weighs can only make it fewer. Only administrators see
    the hosts; others are shown what was published of the flavor.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "flavor",
            metavar="<flavor>",
            nargs="?",
            help="Flavor (name or ID); without one --publish is about all that ask for GPUs",
        )
        parser.add_argument(
            "--publish",
            choices=list(Detail),
            type=Detail,
            help="Write into the flavor, for all who may use it, how many could boot: the number, "
            "or none, few or several; nothing removes it",
        )
        parser.add_argument(
            "--few",
            metavar="<n>",
            type=int,
            default=_FEW,
            help=f"With --publish: the largest number that is called few (default: {_FEW})",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> _Table:
        connection = self.connection(parsed_args)
        if parsed_args.publish:
            named = [parsed_args.flavor] if parsed_args.flavor else []
            return _PUBLISHED, list(_publish(connection, named, parsed_args))
        if not parsed_args.flavor:
            raise exceptions.CommandError("name a flavor, or --publish what there is of all")
        (flavor,) = flavors.read(connection, [parsed_args.flavor])
        try:
            answers = hosts.answers(connection, Size.of(flavor), flavors.request_of(flavor))
        except rest.Refused as refused:
            found = _published(flavor, refused)
            self.say(
                f"{flavor.name}: {found.instances} could boot at {found.at}; the hosts are for "
                "administrators."
            )
            return _COLUMNS, [("any", _number(found), "", "", found.reason)]
        total, able = capacity.could_boot(answers)
        self.say(
            f"{flavor.name}: {total} could boot now, on {able} of {len(answers)} hosts with GPUs."
        )
        rows = [
            (each.host, each.instances, each.free, each.in_service, each.reason) for each in answers
        ]
        return _COLUMNS, rows


def _published(flavor: Any, refused: rest.Refused) -> Startable:
    """What administrators have published of *flavor*

    :raises Refused: where that is nothing
    """
    text = (flavor.extra_specs or {}).get(names.CAPACITY)
    try:
        if text:
            return startable.parse(text)
    except exception.InvalidExtraSpec as error:
        raise rest.Refused(f"{refused}; of {flavor.name} itself {error}") from refused
    raise rest.Refused(
        f"{refused}; none has published how many of {flavor.name} could boot"
    ) from refused


def _number(found: Startable) -> int | str:
    return int(found.instances) if found.instances.isdecimal() else found.instances


def _publish(
    connection: Any, named: Sequence[str], parsed_args: argparse.Namespace
) -> Iterator[tuple[Any, ...]]:
    snapshot = rest.Snapshot(connection)
    detail = parsed_args.publish
    for flavor in flavors.read(connection, named):
        asked = flavors.request_of(flavor)
        if not named and not (asked.asks_for_gpus or asked.vgpu_words):
            continue
        with rest.clean_refusals("Nova"):
            if detail is Detail.NOTHING:
                flavors.remove(connection, flavor, names.CAPACITY)
                yield flavor.name, "", ""
                continue
        found = _startable(snapshot, flavor, asked, detail, parsed_args.few)
        with rest.clean_refusals("Nova"):
            flavors.write(connection, flavor, {names.CAPACITY: str(found)})
        yield flavor.name, _number(found), found.reason


def _startable(
    snapshot: rest.Snapshot, flavor: Any, asked: FlavorRequest, detail: Detail, few: int
) -> Startable:
    now = timeutils.utcnow().strftime("%Y-%m-%dT%H:%MZ")
    size = Size.of(flavor)
    try:
        total, _ = capacity.could_boot(hosts.answers(snapshot, size, asked))
        why = "" if total else _why_none(snapshot, size, asked)
    except query.Unservable as error:
        total, why = 0, str(error)
    return Startable(startable.told(total, detail, few), now, why)


def _why_none(snapshot: rest.Snapshot, size: Size, asked: FlavorRequest) -> str:
    """The reason that an instance's fault would have, in the form for users: without the hosts"""
    wanted = query.placement_query(snapshot, size, asked)
    found = hosts.read(snapshot, wanted)
    (request,) = (each for each in asked.requests if each.resource_class == wanted.resource_class)
    for part in wanted.groups:
        offers = [
            group
            for host in found
            if not host.unusable
            for group in host.groups
            if capacity.fits(part, group)
        ]
        if not offers:
            return "no host in service has such GPUs"
        reason = reasons.shortage(request, part, list[Offer](offers))
        if reason is None and not any(each.places(part.count) for each in offers):
            free, total = sum(each.free for each in offers), sum(each.total for each in offers)
            reason = reasons.without_partition(request, part, free, total)
        if reason:
            return reason.user_text
    answers = capacity.answers(wanted.groups, wanted.amounts, found, isolate=wanted.isolate)
    if asked.is_preemptible and capacity.could_boot(answers)[0]:
        return reasons.kept(request).user_text  # it would be on hosts of which it gets none now
    return "fitting GPUs are free, but not together with what else the flavor asks for"
