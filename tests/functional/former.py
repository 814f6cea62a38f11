# SPDX-License-Identifier: Apache-2.0
"""A cloud as an older Nova or nova-gpu left it: its databases, its guests and files of state.

``tests/fixtures/clouds`` has one of Nova 2024.1, a row of a table, a file or a guest in each line.
In the environment of that release this records it anew::

    python -m testtools.run tests.functional.former.Record
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any, ClassVar
from unittest import mock

import testtools
from nova import context as nova_context
from nova import objects
from nova.db import migration
from nova.db.api import api as api_db
from nova.db.main import api as main_db
from nova.tests.fixtures import libvirt as fakelibvirt
from oslo_utils import timeutils
from oslo_utils.fixture import uuidsentinel
from placement import db_api as placement_db
from placement.objects import resource_class, trait

from tests.fixtures import hosts
from tests.functional import base

_RECORDED = pathlib.Path(__file__).parents[1] / "fixtures/clouds/2024.1.jsonl"
# Nova's tests make these for each process.
_UUIDS = ("cell1", "node_host1")
_HAS_ROWS = "select name from sqlite_master where type = 'table' and name != 'alembic_version'"
_UNUSED_TRAITS = (
    "delete from traits where id not in (select trait_id from resource_provider_traits)"
)


def _databases(cell1: objects.CellMapping) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name of each database, its engine, and a context that means it."""
    yield "api", api_db.get_engine(), None
    yield "placement", placement_db.get_placement_engine(), None
    with nova_context.target_cell(nova_context.get_admin_context(), cell1) as context:
        yield "main", main_db.get_engine(context=context), context


class FormerTestBase(base.GPUServersTestBase):
    """The cloud goes on with the Nova of this process: its schema is brought up to date first.

    ``former``: by name, what was recorded beside databases, guests and files; nothing where the
    cloud is new.
    """

    RECORDED: ClassVar[pathlib.Path] = _RECORDED

    def setUp(self) -> None:
        self.former: dict[str, Any] = {}
        self._rows: list[tuple[str, str, dict[str, Any]]] = []
        self._domains_xml: list[str] = []
        self._files: dict[str, str] = {}
        for line in self.RECORDED.read_text().splitlines():
            kind, name, value = json.loads(line)
            if kind == "former":
                self.former[name] = value
            elif kind == "domain":
                self._domains_xml.append(value)
            elif kind == "state":
                self._files[name] = value
            else:
                self._rows.append((kind, name, value))
        sentinels = mock.patch.dict(uuidsentinel._sentinels, self.former.get("uuids", {}))
        sentinels.start()
        self.addCleanup(sentinels.stop)
        super().setUp()

    def _setup_services(self) -> None:
        # Nova 34 does not start beside services of 29 to 32, unless all are upgraded at once.
        self.flags(disable_compute_service_check_for_ffu=True, group="workarounds")
        for name, engine, context in _databases(self.cell_mappings["cell1"]):
            if self.former:
                self._restore(name, engine, context)
        for mapping in objects.HostMappingList.get_all(nova_context.get_admin_context()):
            self.host_mappings[mapping.host] = mapping
        super()._setup_services()

    def _restore(self, database: str, engine: Any, context: Any) -> None:
        with engine.connect() as connection:
            (tables,) = zip(*connection.connection.execute(_HAS_ROWS).fetchall(), strict=True)
            remove = "delete from" if database == "placement" else "drop table"
            for table in tables:
                connection.connection.execute(f'{remove} "{table}"')
            if database != "placement":
                connection.connection.execute("drop table alembic_version")
            connection.connection.commit()
        if database != "placement":
            revision = self.former["revisions"][database]
            migration.db_sync(version=revision, database=database, context=context)
        with engine.connect() as connection:
            for _, table, row in (entry for entry in self._rows if entry[0] == database):
                if table == "services":  # no service of these tests reports that it is up
                    row = {**row, "last_seen_up": str(timeutils.utcnow())}
                columns = ", ".join(f'"{column}"' for column in row)
                values = ", ".join("?" * len(row))
                connection.connection.execute(
                    f'insert into "{table}" ({columns}) values ({values})', tuple(row.values())
                )
            connection.connection.commit()
        if database == "placement":  # its schema is the same since
            trait._TRAITS_SYNCED = resource_class._RESOURCE_CLASSES_SYNCED = False
            trait.ensure_sync(placement_db.DbContext())
            resource_class.ensure_sync(placement_db.DbContext())
        else:
            migration.db_sync(database=database, context=context)

    def _get_connection(self, *args: Any, **kwargs: Any) -> Any:
        connection = super()._get_connection(*args, **kwargs)
        for xml in self._domains_xml:
            connection.defineXML(xml).create()
        return connection

    def prepare(self, host: hosts.Host) -> None:
        for name, text in self._files.items():
            path = host.root / "state" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


class Record(base.GPUServersTestBase):
    """Two running instances and one that is stopped, on a host with eight cards"""

    run_tests_with = testtools.RunTest

    def test(self) -> None:
        self.start_host()
        flavors = {gpus: self.gpu_flavor(gpus) for gpus in (3, 2, 1)}
        servers = {gpus: self.boot(flavor) for gpus, flavor in flavors.items()}
        self._stop_server(servers[1])
        self.period()
        names = {gpus: server["id"] for gpus, server in servers.items()}
        record(self, _RECORDED, flavors=flavors, servers=names)


def record(case: base.GPUServersTestBase, path: pathlib.Path, **former: Any) -> None:
    """Write the cloud of *case*, with *former* beside it, as :class:`FormerTestBase` reads it."""
    revisions, lines = {}, []
    for name, engine, context in _databases(case.cell_mappings["cell1"]):
        if name != "placement":
            revisions[name] = migration.db_version(database=name, context=context)
        with engine.connect() as connection:
            lines += [[name, *row] for row in _rows(connection.connection)]
    active = case.connection().listAllDomains(fakelibvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
    lines += [["domain", domain.UUIDString(), domain.XMLDesc(0)] for domain in active]
    lines += [
        ["state", str(file.relative_to(case.state())), file.read_text()]
        for file in sorted(case.state().rglob("*"))
        if file.is_file()
    ]
    uuids = {name: getattr(uuidsentinel, name) for name in _UUIDS}
    former |= {"revisions": revisions, "uuids": uuids}
    lines += [["former", name, value] for name, value in former.items()]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _rows(connection: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the table and the values of each row that it has."""
    for (table,) in connection.execute(_HAS_ROWS).fetchall():
        if table == "traits":
            connection.execute(_UNUSED_TRAITS)
        read = connection.execute(f'select * from "{table}"')
        names = [column[0] for column in read.description]
        for row in read.fetchall():
            yield table, {k: v for k, v in zip(names, row, strict=True) if v is not None}
