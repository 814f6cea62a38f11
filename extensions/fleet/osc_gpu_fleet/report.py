# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu report --html FILE``: writes a page that shows the GPUs of a cloud."""

from __future__ import annotations

import argparse
import base64
import collections
import dataclasses
import datetime
import hashlib
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from lxml import html
from lxml.html.builder import E
from osc_lib import exceptions
from oslo_utils import timeutils

from nova_gpu.core import names
from nova_gpu.core.placement import inventory
from nova_gpu.core.printable import MOST_OF_A_LINE, printable
from nova_gpu.core.scheduling import capacity
from nova_gpu.core.scheduling.capacity import Answer
from osc_gpu import base_command, flavors, group_list, hosts, projects, query, rest, usage
from osc_gpu.group_list import Provider
from osc_gpu.resource_request import Size
from osc_gpu.usage import UsageRecord

# For one flavor: hosts differ in how many GPUs they have left, so there may be very many reasons.
_MOST_REASONS = 6

_GROUP = ("Host", "GPU", "Mode", "In use", "Reserved", "Free", "Total", "")
_HELD = ("Instance", "Project", "Host", "GPU", "GPUs", "vGPUs", "Remark")
_PROJECT = ("Project", "Instances", "GPUs", "vGPUs")
_CAPACITY = ("Flavor", "Asks for", "Instances", "Hosts", "Why not more")
# The columns with texts of users, which may have any length
_TEXTS = frozenset({"Instance", "Project", "Remark", "Asks for", "Why not more"})
_NUMBERS = frozenset({"In use", "Reserved", "Free", "Total", "GPUs", "vGPUs", "Instances", "Hosts"})


class WriteReport(base_command.Command):
    """Write a page about GPUs: the groups, their instances, and what could boot now.

    It is one file that loads nothing from elsewhere. It names the instances of all projects. For
    administrators.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--html", metavar="<file>", required=True, type=pathlib.Path, help="File to write"
        )
        parser.add_argument(
            "--title", metavar="<text>", default="GPUs", help="Title of the page (default: GPUs)"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        begun = timeutils.utcnow()
        report = read(self.connection(parsed_args))
        text = render(report, parsed_args.title, begun)
        try:
            parsed_args.html.write_text(text, encoding="utf-8")
        except OSError as e:
            raise exceptions.CommandError(
                f"{parsed_args.html} cannot be written: {e.strerror}"
            ) from e
        self.say(
            f"{parsed_args.html}: groups of GPUs: {len(report.groups)}; flavors: "
            f"{len(report.capacities)}; instances: {len({use.server for use in report.held})}."
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Capacity:
    """How many instances of one flavor with GPUs could boot now.

    ``answers`` has one answer for each host. If ``wrong`` is not empty, it is why no host can ever
    have an instance, and there are no answers.
    """

    flavor: str
    asks_for: str
    answers: tuple[Answer, ...] = ()
    wrong: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class FleetReport:
    """What the page shows. ``projects``: their names by ID, as far as Keystone lists them."""

    groups: tuple[Provider, ...]
    held: tuple[UsageRecord, ...]
    capacities: tuple[Capacity, ...]
    projects: Mapping[str, str] = dataclasses.field(default_factory=dict)


def read(connection: Any) -> FleetReport:
    """Return the data of ``gpu group list``, ``gpu usage`` and ``gpu capacity`` of each flavor."""
    snapshot = rest.CachedConnection(connection)
    return FleetReport(
        tuple(group_list.read(snapshot)),
        tuple(usage.held(snapshot)),
        tuple(sorted(_capacities(snapshot), key=lambda row: row.flavor)),
        projects.names(connection),
    )


def _capacities(snapshot: rest.CachedConnection) -> Iterator[Capacity]:
    for flavor in flavors.read(snapshot):
        request = flavors.request_of(flavor)
        if not (request.asks_for_gpus or request.vgpu_words):
            continue
        try:
            answers = hosts.answers(snapshot, Size.of(flavor), request)
        except query.Unservable as e:
            yield Capacity(flavor.name, flavors.asked_for(request), wrong=str(e))
        else:
            yield Capacity(flavor.name, flavors.asked_for(request), tuple(answers))


def render(fleet: FleetReport, title: str, read_at: datetime.datetime) -> str:
    """Return the *fleet* as one HTML page that loads nothing and runs nothing.

    Users choose the names in it: they become text nodes of a tree, never markup, each isolated from
    the direction in which its neighbours are read. If markup got through all the same, the page's
    own policy lets no script run, no style but the page's apply, and nothing be fetched.

    :param read_at: when reading the fleet began, in UTC
    """
    style = resources.files(__package__).joinpath("report.css").read_text(encoding="utf-8")
    sections = (
        ("groups", "GPUs by host", [_key(), _table(_GROUP, map(_group, fleet.groups))]),
        ("projects", "Projects", [_table(_PROJECT, _projects(fleet))]),
        ("instances", "Instances", [_table(_HELD, (_held(use, fleet) for use in fleet.held))]),
        ("capacity", "What could boot now", [_table(_CAPACITY, map(_could, fleet.capacities))]),
    )
    page = E.html(
        E.head(
            E.meta({"charset": "utf-8"}),
            E.meta({"http-equiv": "Content-Security-Policy", "content": _policy(style)}),
            E.meta({"name": "viewport", "content": "width=device-width, initial-scale=1"}),
            E.meta({"name": "robots", "content": "noindex"}),
            E.title(printable(title)),
            E.style(style),
        ),
        E.body(
            E.header(
                E.h1(_text(title)),
                E.p(f"What Placement and Nova had at {read_at:%Y-%m-%d %H:%M} UTC"),
                E.nav(*(E.a(heading, href=f"#{name}") for name, heading, _ in sections)),
            ),
            E.main(
                E.dl(*_tiles(fleet)),
                *(E.section(E.h2(heading), *parts, id=name) for name, heading, parts in sections),
                E.p(_WHAT_COUNTS, {"class": "note"}),
            ),
        ),
        lang="en",
    )
    text: str = html.tostring(page, encoding="unicode", doctype="<!DOCTYPE html>")
    return text


_WHAT_COUNTS = (
    "Reserved GPUs are given to no new instance: they have failed, are in quarantine, or are used "
    "by guests that are not Nova's; one that an instance still has counts as in use, too. What "
    "could boot is what Placement counts, for each flavor by itself; aggregates, zones and images "
    "can make it fewer."
)


def _policy(style: str) -> str:
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def _text(text: str) -> Any:
    return E.bdi(printable(text, MOST_OF_A_LINE))


def _tiles(fleet: FleetReport) -> Iterator[Any]:
    whole = [group for group in fleet.groups if group.resource_class == names.RESOURCE_CLASS]
    parts = [group for group in fleet.groups if group.resource_class == names.VGPU_RESOURCE_CLASS]
    for noun, groups in (("GPUs", whole), ("vGPUs", parts)):
        if groups or noun == "GPUs":
            used = sum(group.group.used for group in groups)
            yield _tile(f"{noun} in use", f"{used} of {sum(group.group.total for group in groups)}")
            yield _tile(f"{noun} free", str(sum(group.group.free for group in groups)))
            yield _tile(f"{noun} reserved", str(sum(group.group.reserved for group in groups)))
    yield _tile("hosts", str(len({group.host for group in fleet.groups})))
    yield _tile("instances with GPUs", str(len({use.server for use in fleet.held})))
    yield _tile("projects with GPUs", str(len({use.project for use in fleet.held})))


def _tile(noun: str, value: str) -> Any:
    return E.div(E.dt(noun), E.dd(value))


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Any:
    """Return an HTML table, or a paragraph "None." without rows.

    The attribute ``data-label`` of each cell names its column; the style shows it on narrow pages.
    """
    body = [
        E.tr(*(_cell(column, value) for column, value in zip(columns, row, strict=True)))
        for row in rows
    ]
    if not body:
        return E.p("None.")
    heads = (E.th(column, _of(column), scope="col") for column in columns)
    return E.table(E.thead(E.tr(*heads)), E.tbody(*body))


def _of(column: str) -> dict[str, str]:
    if column in _NUMBERS:
        return {"class": "number"}
    return {"class": "text"} if column in _TEXTS else {}


def _cell(column: str, value: Any) -> Any:
    content = value if isinstance(value, list) else [_text(str(value))]
    return E.td(*content, {"data-label": column, **_of(column)})


def _kind(provider: Provider) -> list[Any]:
    return [_text(provider.model), E.small(_text(f"{provider.product}, {provider.architecture}"))]


def _group(provider: Provider) -> Sequence[Any]:
    group = provider.group
    host = [_text(provider.host)]
    if provider.unusable:
        host.append(E.small(_text(provider.unusable)))
    amounts = (group.used, group.reserved, group.free, group.total)
    return (host, _kind(provider), provider.mode, *amounts, [_bar(provider)])


def _bar(provider: Provider) -> Any:
    """Return an SVG bar of a group's used, reserved and free GPUs.

    Attributes give its proportions, because the page's policy forbids inline styles.
    """
    group = provider.group
    out = inventory.out_of_service(group.total, group.free, group.used)
    svg = E.svg(
        {
            "class": "bar",
            "viewBox": f"0 0 {max(group.total, 1)} 1",
            "preserveAspectRatio": "none",
            "aria-hidden": "true",
        }
    )
    at = 0
    for name, amount in (("used", group.used), ("reserved", out), ("free", group.free)):
        svg.append(E.rect({"class": name, "x": str(at), "width": str(amount), "height": "1"}))
        at += amount
    return svg


def _key() -> Any:
    texts = {"used": "in use", "reserved": "reserved", "free": "free"}
    return E.p({"class": "key"}, *(E.span(text, {"class": name}) for name, text in texts.items()))


def _projects(fleet: FleetReport) -> Iterator[Sequence[Any]]:
    for project, *amounts in usage.by_project(fleet.held):
        yield [_project(project, fleet), *amounts]


def _project(uuid: str, fleet: FleetReport) -> list[Any]:
    name = fleet.projects.get(uuid)
    return [_text(name), E.small(_text(uuid))] if name else [_text(uuid)]


def _held(use: UsageRecord, fleet: FleetReport) -> Sequence[Any]:
    who = [_text(use.name or use.server)]
    if use.name:
        who.append(E.small(_text(use.server)))
    where = (use.provider.host, _kind(use.provider))
    return (who, _project(use.project, fleet), *where, use.gpus, use.vgpus, use.remark)


def _could(possible: Capacity) -> Sequence[Any]:
    if possible.wrong:
        return (possible.flavor, possible.asks_for, 0, 0, possible.wrong)
    total, able = capacity.could_boot(possible.answers)
    return (possible.flavor, possible.asks_for, total, able, [E.ul(*_reasons(possible.answers))])


def _reasons(answers: Iterable[Answer]) -> Iterator[Any]:
    parts = (part for answer in answers for part in answer.reason.split("; "))
    counted = collections.Counter(parts).most_common()
    for reason, count in counted[:_MOST_REASONS]:
        yield E.li(f"{count} {'host' if count == 1 else 'hosts'}: ", _text(reason))
    if others := counted[_MOST_REASONS:]:
        yield E.li(f"other reasons: {len(others)}")
