# SPDX-License-Identifier: Apache-2.0
"""The page of ``openstack gpu report``."""

from __future__ import annotations

import base64
import datetime
import hashlib
import re
import unittest

from lxml import html

from nova_gpu.core.model import DeliveryMode, GroupKey
from nova_gpu.core.scheduling.capacity import Answer, Group
from osc_gpu.group_list import Provider
from osc_gpu.usage import UsageRecord
from osc_gpu_fleet import report
from osc_gpu_fleet.report import Capacity, FleetReport

_KEY = GroupKey("10de", "1091", DeliveryMode.LXC)
_TRAITS = frozenset({"CUSTOM_GPU_ARCH_FERMI", "CUSTOM_GPU_MODEL_TESLA_M2090"})
_PROVIDER = Provider("u1", "host1", None, _KEY, "PGPU", Group(8, 1, 2, _TRAITS))
_WHEN = datetime.datetime(2026, 11, 22, 2, 30)
_HELD = UsageRecord("5f7c", "first", "ACTIVE", "p1", "", _PROVIDER, 2)
_ANSWERS = (
    Answer("host1", 2, 5, 7, "no more GPUs"),
    Answer("host2", 0, 0, 8, "2 GPUs asked for, 0 of 8 free"),
    Answer("host3", 0, 0, 8, "drained; 2 GPUs asked for, 0 of 8 free"),
)
_CAPACITY = Capacity("cg1.xlarge", "2 GPUs", _ANSWERS)
_FLEET = FleetReport((_PROVIDER,), (_HELD,), (_CAPACITY,))


def render(fleet: FleetReport = _FLEET, title: str = "GPUs") -> str:
    return report.render(fleet, title, _WHEN)


def texts(text: str, where: str) -> list[str]:
    return [" ".join(element.itertext()) for element in html.fromstring(text).xpath(where)]


class PageTest(unittest.TestCase):
    def test_it_loads_and_runs_nothing(self) -> None:
        text = render()
        (style,) = html.fromstring(text).xpath("//style/text()")
        self.assertIsNone(re.search(r"url\(|@import|expression|</", style))
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        (policy,) = html.fromstring(text).xpath("//meta[@http-equiv]/@content")
        self.assertTrue(policy.startswith("default-src 'none'"), policy)
        self.assertIn(f"style-src 'sha256-{digest}'", policy)
        self.assertNotIn("unsafe", policy)

    def test_what_it_says(self) -> None:
        text = render()
        tiles = dict(zip(texts(text, "//dt"), texts(text, "//dd"), strict=True))
        self.assertEqual(
            {
                "GPUs in use": "2 of 8",
                "GPUs free": "5",
                "GPUs reserved": "1",
                "hosts": "1",
                "instances with GPUs": "1",
                "projects with GPUs": "1",
            },
            tiles,
        )
        self.assertIn("at 2026-11-22 02:30 UTC", texts(text, "//header/p")[0])
        group = [cell.strip() for cell in texts(text, "//*[@id='groups']//td")]
        self.assertEqual(
            ["host1", "tesla_m2090 10de:1091, fermi", "lxc", "2", "1", "5", "8"], group[:7]
        )
        widths = html.fromstring(text).xpath("//rect/@width")
        self.assertEqual(["2", "1", "5"], widths)
        self.assertEqual(["p1", "1", "2", "0"], texts(text, "//*[@id='projects']//td"))
        self.assertEqual("first 5f7c", texts(text, "//*[@id='instances']//td")[0])
        could = texts(text, "//*[@id='capacity']//td")
        self.assertEqual(["cg1.xlarge", "2 GPUs", "2", "1"], could[:4])
        self.assertIn("2 hosts:  2 GPUs asked for, 0 of 8 free", could[4])
        self.assertIn("1 host:  drained", could[4])
