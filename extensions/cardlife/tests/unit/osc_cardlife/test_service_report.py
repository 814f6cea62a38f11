# SPDX-License-Identifier: Apache-2.0
"""What each project was given, and what of it works."""

from __future__ import annotations

import dataclasses
import datetime
import unittest
from types import SimpleNamespace
from typing import Any

from nova_gpu.core.model import DeliveryMode, GroupKey
from nova_gpu.core.scheduling.capacity import Group
from osc_gpu.group_list import Provider
from osc_gpu.usage import UsageRecord
from osc_gpu_cardlife import maintenance, service_report
from osc_gpu_cardlife.service_report import NO_PROJECT

_KEY = GroupKey("10de", "1091", DeliveryMode.LXC)
_NOW = datetime.datetime(2026, 12, 5, 12)


def provider(used: int, reserved: int = 0, unusable: str | None = None) -> Provider:
    group = Group(8, reserved, used, frozenset())
    return Provider("u1", "host1", unusable, _KEY, "PGPU", group)


def aggregate(hosts: list[str], **metadata: str) -> Any:
    return SimpleNamespace(name="week 49", hosts=hosts, metadata=metadata)


class SharesTest(unittest.TestCase):
    def test_each_case(self) -> None:
        """By project: delivered, healthy, reserved, in use, and the sizes of outages"""
        drained, none = "drained", NO_PROJECT
        for text, group, amounts, owner, is_up, expected in (
            ("all free", provider(0), {}, none, True, {none: (8, 8, 0, 0, [])}),
            (
                "two projects share a host",
                provider(5),
                {"a": 2, "b": 3},
                none,
                True,
                {"a": (2, 2, 0, 2, []), "b": (3, 3, 0, 3, []), none: (3, 3, 0, 0, [])},
            ),
            ("a project's own host", provider(2), {"a": 2}, "a", True, {"a": (8, 8, 8, 2, [])}),
            (
                "another project still has some of it",
                provider(5),
                {"a": 2, "b": 3},
                "a",
                True,
                {"a": (5, 5, 5, 2, []), "b": (3, 3, 0, 3, [])},
            ),
            (
                "broken cards of an own host",
                provider(7, reserved=2),
                {"a": 7},
                "a",
                True,
                {"a": (8, 6, 8, 7, [2])},
            ),
            (
                "broken cards of a shared host may be anyone's, so they are healthy for none",
                provider(3, reserved=1),
                {"a": 3},
                none,
                True,
                {"a": (3, 2, 0, 3, [1]), none: (5, 4, 0, 0, [1])},
            ),
            (
                "a drained host keeps its guests",
                provider(3, 0, drained),
                {"a": 3},
                "a",
                True,
                {"a": (8, 3, 8, 3, [5])},
            ),
            (
                "a broken card on a drained host counts once",
                provider(3, 1, drained),
                {"a": 3},
                "a",
                True,
                {"a": (8, 3, 8, 3, [1, 4])},
            ),
            (
                "a host that does not report",
                provider(3, 1, "down"),
                {"a": 3},
                "a",
                False,
                {"a": (8, 0, 8, 3, [8])},
            ),
            (
                "more in use than there are cards",
                provider(9),
                {"a": 9},
                none,
                True,
                {"a": (9, 9, 0, 9, [])},
            ),
        ):
            uses = [
                UsageRecord(f"s{name}", "", "ACTIVE", name, "", group, count)
                for name, count in amounts.items()
            ]
            up = {"host1"} if is_up else set()
            shares = service_report.shares([group], uses, {"host1": owner} if owner else {}, up)
            rows = {
                project: (
                    *(share.delivered, share.healthy, share.reserved, share.in_use),
                    [outage.count for outage in share.outages],
                )
                for (project, _), share in shares.items()
            }
            self.assertEqual(expected, rows, text)

    def test_reasons(self) -> None:
        group = provider(3, 1)
        use = UsageRecord("s", "", "ACTIVE", "a", "", group, 3)
        shared = service_report.shares([group], [use], {}, {"host1"})["a", "PGPU"].outages
        own = service_report.shares([group], [use], {"host1": "a"}, {"host1"})["a", "PGPU"].outages
        self.assertIn("of which project is not known", shared[0].record()["reason"])
        self.assertNotIn("of which project", own[0].record()["reason"])
        self.assertEqual("unknown", own[0].record()["since"])

    def test_vgpus_are_apart(self) -> None:
        whole = provider(2)
        parts = dataclasses.replace(whole, resource_class="VGPU")
        uses = [
            UsageRecord("s", "", "ACTIVE", "a", "", whole, 2),
            UsageRecord("s", "", "ACTIVE", "a", "", parts, 0, 3),
        ]
        shares = service_report.shares([whole, parts], uses, {}, {"host1"})
        self.assertEqual(2, shares["a", "PGPU"].in_use)
        self.assertEqual(3, shares["a", "VGPU"].in_use)


class OwnersTest(unittest.TestCase):
    def test_each_case(self) -> None:
        for metadata, expected in (
            ({}, {}),
            ({"filter_tenant_id": "a"}, {"node1": "a"}),
            ({"filter_tenant_id3": "a"}, {"node1": "a"}),
            ({"filter_tenant_id": "a", "filter_tenant_id2": "b"}, {}),
            ({"filter_tenant_id": "a, b"}, {}),
            ({"filter_tenant_id": ""}, {}),
            ({"other": "a"}, {}),
        ):
            aggregates = [aggregate(["service1"], **metadata)]
            nodes = {"node1": "service1", "node2": "service2"}
            self.assertEqual(expected, service_report.owners(aggregates, nodes), metadata)


class WindowsTest(unittest.TestCase):
    def test_each_case(self) -> None:
        for start, end, state in (
            ("2026-12-05T11:00:00Z", "2026-12-05T13:00:00Z", "in progress"),
            ("2026-12-05T12:00:00Z", "2026-12-05T13:00:00Z", "in progress"),
            ("2026-12-05T13:00:00+01:00", "2026-12-05T13:30:00+01:00", "in progress"),
            ("2026-12-05T12:01:00Z", "2026-12-05T13:00:00Z", "planned"),
            ("2026-12-05T11:00:00Z", "2026-12-05T12:00:00Z", "over"),
            ("soon", "2026-12-05T13:00:00Z", "unknown"),
            ("2026-12-05T11:00:00Z", "later", "unknown"),
            ("0001-01-01T00:00:00+05:00", "later", "unknown"),
            ("soon", "2026-12-05T11:00:00Z", "over"),
        ):
            words = {"gpu_maintenance_start": start, "gpu_maintenance_end": end}
            (window,) = maintenance.windows([aggregate(["host1"], **words)])
            self.assertEqual(state, window.state(_NOW), (start, end))

    def test_other_aggregates_are_none(self) -> None:
        others = [aggregate([]), aggregate([], ssd="true")]
        others[0].metadata = None
        self.assertEqual([], maintenance.windows(others))
