# SPDX-License-Identifier: Apache-2.0
"""All that a cloud keeps in its databases, and what differs between two dumps of all that it keeps.

Each value has a place, such as ``cell1.instances[<uuid>].host``. What is in JSON has a place for
each of its own values. Two dumps are compared by place.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy
from nova import context as nova_context
from nova.db.api import api as api_database
from nova.db.main import api as cell_database
from placement import db_api as placement_database

Dump = Mapping[str, str]

# Columns that change as time goes by, or with each write: a row was touched, not what it says.
_CLOCKS = {"created_at", "updated_at", "last_seen_up", "report_count", "generation"}
# By table, what names a row; else it is the primary key. Rows of some are made anew, by Nova too.
_KEYS = {
    "allocations": ("resource_provider_id", "consumer_id", "resource_class_id"),
    "inventories": ("resource_provider_id", "resource_class_id"),
    "instance_extra": ("instance_uuid",),
    "instance_system_metadata": ("instance_uuid", "key"),
    "instances": ("uuid",),
    "pci_devices": ("compute_node_id", "address"),
    "request_specs": ("instance_uuid",),
    "resource_classes": ("name",),
    "resource_providers": ("name",),
    "traits": ("name",),
}
# Those whose rows get another id then: what refers to it has the row's name here.
_MADE_ANEW = {"allocations", "inventories", "pci_devices", "resource_providers"}
# By column, the table whose row it names
_REFERENCES = {
    "parent_provider_id": "resource_providers",
    "resource_class_id": "resource_classes",
    "resource_provider_id": "resource_providers",
    "root_provider_id": "resource_providers",
    "trait_id": "traits",
}
# Of a versioned object: the fields that were set since it was read, in any order
_CHANGES = "nova_object.changes"
_UUID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def dump(cloud: Any, hosts: Iterable[tuple[str, str]]) -> Dump:
    """Return all that *cloud*, one of Nova's functional tests, keeps.

    Rows that Nova has deleted softly are left out: they are those of what is gone. A provider's
    uuid is replaced by its name, and a PCI request's by the number that it has among the
    instance's, because both are made anew.

    :param hosts: what its hosts keep, pairs of a place and a value
    """
    databases = (_of_database(name, engine) for name, engine in _engines(cloud))
    values_by_place = dict(itertools.chain(*databases, hosts))
    names = _names(values_by_place)
    return {_named(place, names): _named(value, names) for place, value in values_by_place.items()}


def differences(before: Dump, after: Dump, expected: Iterable[str] = ()) -> list[str]:
    """Return a line for each value that is in one of the dumps only, or another one.

    :param expected: patterns of whole lines that are left out
    """
    lines = (
        f"{place}: {before.get(place, '(nothing)')} -> {after.get(place, '(nothing)')}"
        for place in sorted(before.keys() | after.keys())
        if before.get(place) != after.get(place)
    )
    pattern = re.compile("|".join(expected) or "(?!)", re.DOTALL)
    return [line for line in lines if not pattern.fullmatch(line)]


def _engines(cloud: Any) -> Iterator[tuple[str, sqlalchemy.Engine]]:
    yield "api", api_database.get_engine()
    admin = nova_context.get_admin_context()
    for name, mapping in sorted(cloud.cell_mappings.items()):
        with nova_context.target_cell(admin, mapping) as context:
            yield name, cell_database.get_engine(context=context)
    yield "placement", placement_database.get_placement_engine()


def _of_database(name: str, engine: sqlalchemy.Engine) -> Iterator[tuple[str, str]]:
    inspector = sqlalchemy.inspect(engine)
    with engine.connect() as connection:
        tables = {
            table: [
                dict(row)
                for row in connection.execute(sqlalchemy.text(f"SELECT * FROM {table}")).mappings()
                if not row.get("deleted")
            ]
            for table in inspector.get_table_names()
        }
    named = {
        column: {row["id"]: row["name"] for row in tables[table]}
        for column, table in _REFERENCES.items()
        if table in tables
    }
    for table, rows in tables.items():
        key = _KEYS.get(table) or inspector.get_pk_constraint(table)["constrained_columns"]
        left_out = {*_CLOCKS, "id"} if table in _MADE_ANEW else _CLOCKS
        counts: Counter[str] = Counter()
        for row in rows:
            for column, names in named.items():
                if row.get(column) is not None:
                    row[column] = names[row[column]]
            identity = " ".join(str(row[column]) for column in key)
            counts[identity] += 1
            if counts[identity] > 1:
                identity += f" #{counts[identity]}"
            for column in row.keys() - left_out:
                yield from _flat(f"{name}.{table}[{identity}].{column}", row[column])


def _flat(place: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield each value within *value*, which may be JSON, as a text or read already."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        with contextlib.suppress(ValueError):  # part of a longer text
            value = json.loads(value)
    if isinstance(value, Mapping) and value:
        for key in value.keys() - {_CHANGES}:
            yield from _flat(place if key == "nova_object.data" else f"{place}.{key}", value[key])
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        for number, item in enumerate(value):
            yield from _flat(f"{place}.{number}", item)
    else:
        yield place, repr(value)


def _names(contents: Dump) -> Mapping[str, str]:
    """Return a name for each uuid that is made anew: of a provider, or of a PCI request."""
    names: dict[str, str] = {}
    for place, value in contents.items():
        if match := re.fullmatch(r"placement\.resource_providers\[(.*)\]\.uuid", place):
            names[value.strip("'")] = f"<provider {match[1]}>"
        elif match := re.fullmatch(
            r".*\.instance_extra\[(.*)\]\.pci_requests\.(\d+)\.request_id", place
        ):
            names[value.strip("'")] = f"<request {match[2]} of {match[1]}>"
    return names


def _named(text: str, names: Mapping[str, str]) -> str:
    return _UUID.sub(lambda match: names.get(match[0], match[0]), text)
