# SPDX-License-Identifier: Apache-2.0
"""The page of ``openstack gpu report``, of hosts as somebody may have them."""

from __future__ import annotations

import datetime

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from nova_gpu.core.model import DeliveryMode, GroupKey
from nova_gpu.core.scheduling.capacity import Answer, Group
from osc_gpu.group_list import Provider
from osc_gpu.usage import UsageRecord
from osc_gpu_fleet import report

_FRAME = (
    '<iframe title="openstack gpu report" style="width: 100%; height: 60em" srcdoc="{}"></iframe>'
)


def _provider(host: str, product: str, *traits: str, total: int, used: int, out: int) -> Provider:
    names = frozenset(f"CUSTOM_GPU_{trait}" for trait in traits)
    key = GroupKey("10de", product, DeliveryMode.PCI)
    return Provider(host, host, None, key, "PGPU", Group(total, out, used, names))


def page() -> str:
    """Return the page as HTML."""
    h200, l40s = ("ARCH_HOPPER", "MODEL_H200_SXM_141GB"), ("ARCH_ADA", "MODEL_L40S")
    groups = (
        _provider("compute-1", "2335", *h200, total=8, used=6, out=0),
        _provider("compute-2", "2335", *h200, total=8, used=0, out=1),
        _provider("compute-3", "26b9", *l40s, total=4, used=1, out=0),
    )
    ids = [f"67c6091b-92d6-4ef4-b8b3-194ffd7b12d{number}" for number in range(3)]
    held = (
        UsageRecord(ids[0], "training", "ACTIVE", "8f2a", "", groups[0], 4),
        UsageRecord(ids[1], "pair", "ACTIVE", "c31d", "", groups[0], 2),
        UsageRecord(ids[2], "render", "ACTIVE", "c31d", "", groups[2], 1),
    )
    no_more, other = "no more GPUs", "architecture ada, not hopper"
    answers = (
        Answer("compute-1", 1, 2, 8, no_more),
        Answer("compute-2", 3, 7, 7, no_more),
        Answer("compute-3", 0, 3, 4, other),
    )
    could = (report.Capacity("two", "2 GPUs (architecture hopper)", answers),)
    names = {"8f2a": "research", "c31d": "studio"}
    fleet = report.FleetReport(groups, held, could, names)
    return report.render(fleet, "GPUs", datetime.datetime(2026, 11, 22, 2, 30))


class ReportDirective(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        text = page().replace("&", "&amp;").replace('"', "&quot;")
        return [nodes.raw("", _FRAME.format(text), format="html")]
