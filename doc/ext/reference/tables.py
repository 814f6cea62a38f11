# SPDX-License-Identifier: Apache-2.0
"""The reference's tables, read from the code, as reStructuredText.

What the code shows to people elsewhere (a metric's HELP, a command's ``--help``) is plain text and
escaped here; what it says for the reference alone is reStructuredText already.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Callable, Iterable, Iterator

from nova_gpu import notifications
from nova_gpu.api import extra_spec_validators
from nova_gpu.cmd import checks as shared
from nova_gpu.cmd import downgrade_check, exporter, status

from . import commands, traits

Row = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Table:
    """``widths``: of the columns, in percent. ``rows``: reStructuredText, a line for each cell"""

    heading: Row
    widths: tuple[int, ...]
    rows: Iterable[Row]

    def lines(self) -> Iterator[str]:
        """:raises ValueError: where there is nothing, or something is not explained"""
        yield from (".. list-table::", "   :header-rows: 1")
        yield from (f"   :widths: {' '.join(map(str, self.widths))}", "")
        rows = list(self.rows)
        if not rows:
            raise ValueError(f"there is no {self.heading[0]}")
        for row in (self.heading, *rows):
            if len(row) != len(self.widths) or not all(each.strip() for each in row):
                raise ValueError(f"{row} does not have each of {self.heading}")
            yield from (f"   {' ' if each else '*'} - {cell}" for each, cell in enumerate(row))


def _metrics() -> Table:
    rows = [
        (f"``{name}{suffix}``", kind, ", ".join(labels) or "none", commands.plain(text))
        for kind, suffix, told in (
            ("gauge", "", exporter.GAUGES),
            ("counter", "_total", exporter.COUNTERS),
            ("summary", "", exporter.SUMMARIES),
        )
        for name, (text, labels) in told.items()
    ]
    return Table(("metric", "type", "labels", "value"), (32, 8, 20, 40), rows)


def _events() -> Table:
    rows = (
        (str(each), "ERROR" if each.is_error else "INFO", each.meaning, f"nova-{each.service}")
        for each in notifications.EventType
    )
    return Table(("``event_type``", "priority", "when", "by"), (20, 10, 52, 18), rows)


def _payload() -> Table:
    said = typing.get_type_hints(notifications.Event, include_extras=True)
    names = [each.name for each in dataclasses.fields(notifications.Event) if each.name != "type"]
    rows = ((name, *getattr(said[name], "__metadata__", ("",))) for name in names)
    return Table(("field", "value"), (18, 82), rows)


def _extra_specs() -> Table:
    rows = (
        (f"``{each.name}``", _literals(each.value["description"]), each.description)
        for each in extra_spec_validators.register()
    )
    return Table(("extra spec", "values", "meaning"), (22, 30, 48), rows)


def _traits(listed: Iterable[traits.Trait]) -> Table:
    rows = ((f"``{each.prefix}{each.value}``", each.meaning) for each in listed)
    return Table(("trait", "what it says of the group"), (42, 58), rows)


def _checks(checks: type[shared.Checks]) -> Table:
    rows = []
    for name, judge in checks._upgrade_checks:
        where, _, finds = (judge.__doc__ or "").partition("\n")[0].partition(": ")
        rows.append((name, where, finds))
    return Table(("check", "where", "what it finds"), (30, 16, 54), rows)


def _commands() -> Table:
    rows = ((f"``{each.line}``", each.help) for each in commands.commands("nova-gpu"))
    return Table(("command", "what it does"), (34, 66), rows)


def _literals(text: str) -> str:
    """What stands in quotes is to be written as it stands."""
    return re.sub(r"'([^']+)'", r"``\1``", text)


TABLES: dict[str, Callable[[], Table]] = {
    "checks": lambda: _checks(status.UpgradeChecks),
    "checks-back": lambda: _checks(downgrade_check.DowngradeChecks),
    "commands": _commands,
    "events": _events,
    "extra-specs": _extra_specs,
    "metrics": _metrics,
    "payload": _payload,
    "traits": lambda: _traits(traits.TRAITS),
    "vgpu-traits": lambda: _traits(traits.VGPU_TRAITS),
}
