# SPDX-License-Identifier: Apache-2.0
"""The report of each project's GPUs, and declared maintenance, by Nova's and Placement's APIs."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

from openstack import exceptions as sdk_exc
from openstack.compute.v2 import _proxy

from osc_gpu_cardlife.maintenance import CreateMaintenance, DeleteMaintenance, ListMaintenance
from osc_gpu_cardlife.service_report import ReportService
from tests.functional import sdk
from tests.functional.shown import ShownTestBase

_WINDOW = ("--start", "2026-12-05T23:00+01:00", "--end", "2099-12-06T02:00", "--reason", "firmware")


class ServiceReportTest(ShownTestBase):
    def report(self, *, admin: bool = True) -> dict[str, dict[str, Any]]:
        status, printed, _ = sdk.shown(self, ReportService, "-f", "json", admin=admin)
        self.assertEqual(0, status)
        return {row["Project"]: row for row in json.loads(printed)}

    def test_it(self) -> None:
        project = self.api.project_id
        self.boot(self.flavor(gpus="2", gpu_arch="s== fermi"), host="host1")
        before = self.report()
        self.assertEqual([2, 2, 0, 2], self.counts(before[project]))
        rest = before["(no project)"]["Delivered"]

        compute = sdk.connect(self).compute
        own = compute.create_aggregate(name="own")
        compute.set_aggregate_metadata(own.id, {"filter_tenant_id": project})
        compute.add_host_to_aggregate(own.id, "host1")
        made = self.report()
        self.assertEqual([8, 8, 8, 2], self.counts(made[project]))
        self.assertEqual(rest - 6, made["(no project)"]["Delivered"])

        service = next(compute.services(host="host1", binary="nova-compute"))
        compute.disable_service(service, disabled_reason="fan")
        (outage,) = self.report()[project]["Out of Service"]
        self.assertEqual((6, "unknown"), (outage["count"], outage["since"]))
        self.assertEqual("disabled: fan", outage["reason"])

        self.values(CreateMaintenance, "week 49", *_WINDOW, "--host", "host1")
        window = {
            "name": "week 49",
            "start": "2026-12-05T22:00:00Z",
            "end": "2099-12-06T02:00:00Z",
            "reason": "firmware",
            "hosts": ["host1"],
        }
        rows = self.report()
        self.assertEqual([window], rows[project]["Maintenance"])
        self.assertEqual([], rows["(no project)"]["Maintenance"])
        self.values(DeleteMaintenance, "week 49")
        self.assertEqual([], self.values(ListMaintenance))
        self.assertEqual(["own"], [aggregate.name for aggregate in compute.aggregates()])

        seen = self.report(admin=False)
        self.assertEqual([project], list(seen))
        self.assertEqual(["unknown"] * 3 + [2], self.counts(seen[project]))

    def test_what_is_refused(self) -> None:
        compute = sdk.connect(self).compute
        host = ("--host", "host1")
        ends_first = ("--start", "2026-12-06", "--end", "2026-12-05", "--reason", "r")
        last_year = ("--start", "2025-11-30", "--end", "2025-12-01")
        for command, arguments, admin, expected in (
            (CreateMaintenance, ("a", *_WINDOW, "--host", "x"), True, "no host called x"),
            (CreateMaintenance, ("a", *ends_first, *host), True, "is not after --start"),
            (CreateMaintenance, ("a", *last_year, *host), True, "2025-12-01T00:00:00Z is over"),
            (CreateMaintenance, ("a", *_WINDOW[:-1], "r" * 256, *host), True, "256 characters"),
            (CreateMaintenance, ("a", *_WINDOW, *host), False, "for administrators"),
            (ListMaintenance, (), False, "for administrators"),
            (DeleteMaintenance, ("a",), False, "for administrators"),
            (DeleteMaintenance, ("own",), True, "no maintenance is called own"),
        ):
            if expected.endswith("own"):
                compute.create_aggregate(name="own")
            self.assertIn(expected, self.refusal(command, *arguments, admin=admin))
        self.assertIn("own", self.refusal(CreateMaintenance, "own", *_WINDOW, *host))
        # Nova refuses the last step: what the steps before have made goes.
        error = sdk_exc.SDKException("the database has gone")
        with mock.patch.object(_proxy.Proxy, "add_host_to_aggregate", side_effect=error):
            self.assertIn("has gone", self.refusal(CreateMaintenance, "b", *_WINDOW, *host))
        self.assertEqual(["own"], [aggregate.name for aggregate in compute.aggregates()])

    def counts(self, row: dict[str, Any]) -> list[Any]:
        return [row[column] for column in ("Delivered", "Healthy", "Reserved", "In Use")]
