# SPDX-License-Identifier: Apache-2.0
"""What ``openstack gpu ...`` costs in a full cloud: 1,000 hosts, 8,000 instances, two cells.

python -m benchmarks.clients [--json] [--hosts N] [--migrations N] [--command NAME ...]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import re
import sys
import tempfile
import time
import unittest
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TextIO
from unittest import mock

from benchmarks import report
from tests.cloud import running

NOTES = (
    "Nova's own API and Placement answer, in this process and from SQLite: requests are those of",
    "any cloud, seconds are the processor's, what the next run compares. The client's own",
    "are those outside of these answers. Two hosts of eight GPUs, all in use by instances of one",
    "GPU, are real; the rows of all others, and of ended migrations, are of them. In each cell",
    "Nova has lost one instance, and another one is in a task.",
)

# The tables of a host and its instances, with the columns that number their rows and others'
_ROWS: dict[str, dict[str, tuple[str, ...]]] = {
    "api": {"host_mappings": ("id",), "instance_mappings": ("id",)},
    "cell": {
        "services": ("id",),
        "compute_nodes": ("id", "service_id"),
        "instances": ("id",),
        "instance_extra": ("id",),
        "instance_info_caches": ("id",),
        "instance_system_metadata": ("id",),
    },
    "placement": {
        "resource_providers": ("id", "root_provider_id", "parent_provider_id"),
        "inventories": ("id", "resource_provider_id"),
        "resource_provider_traits": ("resource_provider_id",),
        "consumers": ("id",),
        "allocations": ("id", "resource_provider_id"),
    },
}
_UUIDS = frozenset({"uuid", "instance_uuid", "consumer_id"})
_HOST = re.compile("^host[12]")
_OFFSET = 10_000  # more than one cloud of two hosts has rows


def clones(
    rows: list[Mapping[str, Any]], numbers: tuple[str, ...], times: int
) -> Iterator[dict[str, Any]]:
    """Yield *rows* again and again, each time of other hosts with other instances."""
    for clone in range(1, times + 1):
        host = rf"\g<0>n{clone}"
        for row in rows:
            made = dict(row)
            for name, value in row.items():
                if name in numbers and value is not None:
                    made[name] = value + _OFFSET * clone
                elif name in _UUIDS and value:
                    made[name] = str(uuid.uuid5(uuid.UUID(value), str(clone)))
                elif isinstance(value, str):
                    made[name] = _HOST.sub(host, value)
            yield made


def measure(options: argparse.Namespace, stream: TextIO) -> NoReturn:
    import sqlalchemy as sa
    import testtools
    from keystoneauth1 import session
    from nova import context as nova_context
    from nova.db.api import api as api_db
    from nova.db.api import models as api_models
    from nova.db.main import api as main_db
    from nova.db.main import models as main_models
    from placement import db_api as placement_db
    from placement.db.sqlalchemy import models as placement_models

    from osc_gpu import capacity, explain, flavor_check, group_list, host_list, usage
    from osc_gpu_fleet import move_commands, preemption
    from osc_gpu_fleet import report as gpu_report
    from tests.functional import base, celled, sdk

    class Clients(celled.TwoCells, base.GPUServersTestBase):
        run_tests_with = testtools.RunTest  # in this process

        def test(self) -> None:
            # What the rows made up is not there for a clean-up.
            running.leave(self._tell)

        def _tell(self) -> int:
            with contextlib.redirect_stdout(stream):
                report.show(list(self._rows()), as_json=options.json, notes=NOTES)
            stream.flush()  # the process ends without it
            return 0

        def _rows(self) -> Iterator[report.Row]:
            logging.disable(logging.WARNING)
            self.flags(instances=-1, cores=-1, ram=-1, group="quota")
            one = self.gpu_flavor(1)
            eight = self.flavor("eight", gpus="8")
            for host in celled.CELLS:
                self.start_host(host)
            server = self.boot(one, host="host1")
            self.boot_several(one, 7, host="host1")
            self.boot_several(one, 8, host="host2")
            self._fill()
            gc.freeze()
            commands = (
                ("usage", usage.ShowUsage, ()),
                ("host list", host_list.ListHosts, ()),
                ("group list", group_list.ListGroups, ()),
                ("report", gpu_report.WriteReport, ("--html", tempfile.mktemp())),
                ("capacity", capacity.ShowCapacity, (eight,)),
                ("explain", explain.ExplainServer, (server["id"],)),
                ("plan", move_commands.MakeRoom, (eight,)),
                ("drain", move_commands.Drain, ("host1",)),
                ("preempt", preemption.Preempt, (eight, "--project", self.api.project_id)),
                ("flavor check", flavor_check.CheckFlavor, ()),
            )
            for name, command, arguments in commands:
                if not options.command or name in options.command:
                    yield from self._row(f"gpu {name}", command, arguments)

        def _row(self, name: str, command: type, arguments: Any) -> Iterator[report.Row]:
            requests: list[str] = []
            answers_s = 0.0
            request = session.Session.request

            def counted(own: Any, url: str, method: str, **kwargs: Any) -> Any:
                nonlocal answers_s
                requests.append(f"{method} {url}")
                start = time.process_time()
                try:
                    return request(own, url, method, **kwargs)
                finally:
                    answers_s += time.process_time() - start

            begun = time.process_time()
            with mock.patch.object(session.Session, "request", counted):
                try:
                    sdk.run(self, command, *arguments)
                    message = ""
                except Exception as error:  # such as no plan
                    message = f" ({error})"
            took = time.process_time() - begun
            own_s = took - answers_s
            text = f"{took:.1f} s, the client's {own_s:.1f} s"
            print(name, len(requests), text, message, file=sys.stderr, flush=True)
            yield report.Row(f"{name}: requests", len(requests), None, "")
            yield report.Row(f"{name}: time", took, None, "s")
            yield report.Row(f"{name}: the client's own time", own_s, None, "s")

        def _fill(self) -> None:
            times = options.hosts // 2 - 1
            tables = {
                "api": api_models.BASE.metadata.tables,
                "cell": main_models.BASE.metadata.tables,
                "placement": placement_models.BASE.metadata.tables,
            }
            engines = [("api", api_db.get_engine())]
            engines.append(("placement", placement_db.get_placement_engine()))
            for cell in self.cell_mappings.values():
                if not cell.is_cell0():
                    admin = nova_context.get_admin_context()
                    with nova_context.target_cell(admin, cell) as context:
                        engines.append(("cell", main_db.get_engine(context=context)))
            for kind, engine in engines:
                with engine.begin() as connection:
                    for name, numbers in _ROWS[kind].items():
                        table = tables[kind][name]
                        rows = list(connection.execute(sa.select(table)).mappings())
                        if name == "services":
                            rows = [row for row in rows if row["topic"] == "compute"]
                        if made := list(clones(rows, numbers, times)):
                            connection.execute(sa.insert(table), made)
                    if kind == "cell":
                        self._end_migrations(connection, tables[kind])

        def _end_migrations(self, connection: Any, tables: Any) -> None:
            """The instances of a cell moved so often, and their moves have ended."""
            columns = tables["instances"].c
            query = sa.select(columns.id, columns.uuid, columns.host, columns.node)
            instances = list(connection.execute(query))
            made = [
                {
                    "uuid": str(uuid.uuid4()),
                    "instance_uuid": instance.uuid,
                    "source_compute": instance.host,
                    "source_node": instance.node,
                    "dest_compute": instance.host,
                    "dest_node": instance.node,
                    "status": "confirmed",
                    "migration_type": "migration",
                    "hidden": False,
                    "cross_cell_move": False,
                    "deleted": 0,
                }
                for number in range(options.migrations // 2)
                for instance in [instances[number % len(instances)]]
            ]
            connection.execute(sa.insert(tables["migrations"]), made)
            lost, busy = max(row.id for row in instances), min(row.id for row in instances)
            change, which = tables["instances"].update(), columns.id
            connection.execute(change.where(which == lost).values(deleted=lost))
            connection.execute(change.where(which == busy).values(task_state="rebooting"))

    result = unittest.TestResult()
    Clients("test").run(result)
    raise SystemExit("\n".join(text[-3000:] for _, text in result.errors + result.failures))


def main() -> None:
    parser = report.parser(__doc__)
    parser.add_argument("--hosts", type=int, default=1000, metavar="N")
    parser.add_argument("--migrations", type=int, default=50_000, metavar="N")
    parser.add_argument("--command", action="append", metavar="NAME", help="such as 'host list'")
    options = parser.parse_args()
    stream = running.begin()
    measure(options, stream)


if __name__ == "__main__":
    main()
