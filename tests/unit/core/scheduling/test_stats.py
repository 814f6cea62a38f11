# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import json
import pathlib
import unittest
from typing import Any

from nova_gpu.core import exception
from nova_gpu.core.flavor.placement_policy import Near
from nova_gpu.core.scheduling import stats
from nova_gpu.core.topology.topology import Islands

FORMER = pathlib.Path(__file__).with_name("former_reports.jsonl")
GROUP: dict[str, Any] = {
    "product": "10de:1091",
    "architecture": "fermi",
    "mode": "lxc",
    "total": 8,
    "model": "Tesla M2090",
    "memory_mib": 5301,
    "islands": {"numa": 4, "nvlink": 1},
}
FERMI = stats.GroupStats(
    "10de:1091", "fermi", "lxc", 8, model="Tesla M2090", memory_mib=5301, islands=Islands(numa=4)
)
FIRST = {"v": 1, "hypervisor": "LXC"}
SECOND = FIRST | {"v": 2}


class StatsTest(unittest.TestCase):
    def test_cards_in_sets(self) -> None:
        board = dataclasses.replace(FERMI, partitions=(1, 2))
        host = stats.HostStats("QEMU", (FERMI, board))
        report = stats.Report(host, ((), ()), free_partitions=((), ((1, 2), (2, 1))))
        text = stats.dumps(report)
        self.assertEqual(report, stats.loads(text))
        self.assertIn("in sets of 1, 2", str(board))
        fields = json.loads(text)
        self.assertEqual([[], [[1, 2], [2, 1]]], fields["free_partitions"])
        self.assertNotIn("partitions", fields["groups"][0])
        for wrong in ([[]], [[], [[1]]], [[], [[1, -2]]], [[], 3]):
            with self.subTest(wrong), self.assertRaises(exception.InvalidStats):
                stats.loads(json.dumps({**fields, "free_partitions": wrong}))

    def test_cards_in_parts(self) -> None:
        free = (("nvidia-63", "GRID P4-1Q", 9), ("nvidia-64", None, 0))
        divided = stats.Divided(3, 2, free, ((1024, 4), (None, None)))
        report = stats.Report(stats.HostStats("QEMU", ()), (), divided=divided)
        self.assertEqual((3, 0, 2), (report.cards, report.free_gpus, report.free_cards))
        self.assertEqual(report, stats.loads(stats.dumps(report)))
        fields = json.loads(stats.dumps(report))
        facts = [[1024, 4], [None, None]]
        summary = {"total": 3, "free": 2, "vgpus": list(map(list, free)), "facts": facts}
        self.assertEqual(summary, fields["divided"])

        def read(**changes: Any) -> stats.Divided | None:
            return stats.loads(json.dumps({**fields, "divided": {**summary, **changes}})).divided

        self.assertEqual(divided, read(facts=[[*fact, "more"] for fact in facts]))
        del summary["facts"]
        self.assertEqual(stats.Divided(3, 2, free), read())
        for wrong in (
            *({"total": -1}, {"free": "2"}),
            *({"vgpus": vgpus} for vgpus in ([[1, "a", 2]], [["a", "b"]], [["a", 3, 2]], None)),
            *({"facts": [[1024, 4], *more]} for more in ([], [[-1, None]], [["1", None]])),
            *({"facts": facts} for facts in ([[1024], [None]], None)),
        ):
            with self.subTest(wrong=wrong), self.assertRaises(exception.InvalidStats):
                read(**wrong)

    def test_what_is_beside_free_gpus(self) -> None:
        host = stats.HostStats("LXC", (FERMI,))
        text = stats.dumps(stats.Report(host, ((),), near=((2, 4, 0, 1),)))
        fields = json.loads(text)
        self.assertEqual([[2, 4, 0, 1]], fields["near"])
        report = stats.loads(text)
        self.assertEqual((2, 4), report.beside(0, Near.NIC))
        self.assertEqual((0, 1), report.beside(0, Near.NVME))
        # A later release may know of more, and another of less.
        later = stats.loads(json.dumps({**fields, "near": [[2, 4, 0, 1, 7, 7]]}))
        self.assertEqual((0, 1), later.beside(0, Near.NVME))
        for less in ({"near": [[2, 4]]}, {"near": [[2, 4, 0]]}):
            self.assertEqual((0, 0), stats.loads(json.dumps(fields | less)).beside(0, Near.NVME))
        del fields["near"]
        self.assertEqual((0, 0), stats.loads(json.dumps(fields)).beside(0, Near.NIC))
        for wrong in ([], [[1], [1]], [["1"]], [[-1]], [1], None):
            with self.subTest(wrong=wrong), self.assertRaises(exception.InvalidStats):
                stats.loads(json.dumps(fields | {"near": wrong}))

    def test_gpus_of_numa_nodes_take_few_bytes(self) -> None:
        for groups, nodes in ((1, 1), (1, 8), (4, 8)):
            report = stats.Report(stats.HostStats("QEMU", (FERMI,) * groups), ((),) * groups)
            rows = tuple((node, 16, 16) for node in range(-1, nodes - 1))
            with_nodes = dataclasses.replace(report, nodes=(rows,) * groups)
            added = len(stats.dumps(with_nodes)) - len(stats.dumps(report))
            self.assertLessEqual(added, 32 * groups * nodes)

    def test_hosts_of_the_first_version_are_read(self) -> None:
        """A scheduler is upgraded before the compute hosts."""
        group = {key: GROUP[key] for key in ("product", "architecture", "mode", "total")}
        old = FIRST | {"groups": [group | {"provider": "host1_gpu_10de_1091_lxc"}]}
        read = stats.loads(json.dumps(old))
        self.assertEqual((stats.GroupStats("10de:1091", "fermi", "lxc", 8),), read.host.groups)
        self.assertEqual((None, 8, 0), (read.free, read.cards, read.free_gpus))

    def test_reports_that_a_former_release_wrote(self) -> None:
        """Written by revision 545a08b, of hosts with whole cards, vGPUs, MIG and NVSwitches"""
        texts = FORMER.read_text().splitlines()
        self.assertEqual(7, len(texts))
        for text in texts:
            # A scheduler of that release reads what this one writes, too.
            self.assertEqual(text, stats.dumps(stats.loads(text)))

    def test_what_a_later_release_adds_is_passed_over(self) -> None:
        more = SECOND | {"groups": [GROUP | {"more": 1, "islands": {"pod": 8} | GROUP["islands"]}]}
        self.assertEqual((FERMI,), stats.loads(json.dumps(more | {"more": []})).host.groups)

    def test_what_cannot_be_read_is_refused(self) -> None:
        """More of it by tests/unit/fuzz/test_records.py"""
        whole = SECOND | {"groups": [GROUP]}
        for fields in (
            *(None, [], {}, SECOND),
            {"v": 3, "hypervisor": "LXC", "groups": []},
            SECOND | {"hypervisor": None, "groups": []},
            *(SECOND | {"groups": groups} for groups in (None, ["x"])),
            *(SECOND | {"groups": [GROUP | {"total": total}]} for total in ("8", -1, True)),
            *(SECOND | {"groups": [GROUP | {"memory_mib": size}]} for size in ("5301", -1, [])),
            *(
                SECOND | {"groups": [GROUP | damage]}
                for damage in ({"architecture": False}, {"product": None}, {"model": []})
            ),
            *(
                SECOND | {"groups": [GROUP | {"islands": islands}]}
                for islands in (None, {"numa": 4}, {"numa": 4, "nvlink": "8"})
            ),
            *(whole | {"free": free} for free in ([], None, [[4]], [[[0, 0, 4]]])),
            *(whole | {"free": [[[low, 0, 0, 0, n]]]} for low, n in ((-2, 4), (0, -4), (0, "4"))),
            *(
                whole | {"reserved_per_free_gpu": reserved}
                for reserved in ({"vcpus": 2}, {"vcpus": 2, "memory_mib": -1}, 2)
            ),
        ):
            with self.subTest(fields=fields), self.assertRaises(exception.InvalidStats):
                stats.loads(json.dumps(fields))
        for text in ("", "{", "nonsense"):
            with self.subTest(text=text), self.assertRaises(exception.InvalidStats):
                stats.loads(text)
