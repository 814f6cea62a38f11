# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks print, and that our side of them is no dearer."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import subprocess
import sys

import fixtures
from nova.scheduler.weights import ram
from oslotest import base

from benchmarks import board_race, report, vgpus
from nova_gpu.scheduler.weights import GPUWeigher

ROWS = (
    report.Row("8 of 8", 8.6, 1720.0, "ms"),
    report.Row("8 of 8, 100 hosts", 15, ">60 s", "ms"),
    report.Row("memory", 12.25, None, "MB"),
)


class ReportTest(base.BaseTestCase):
    def shown(self, *, as_json: bool) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            report.show(ROWS, as_json=as_json, notes=("A note.",))
        return output.getvalue()

    def test_table(self) -> None:
        self.assertEqual(
            "                   ours  other  ratio  unit\n"
            "8 of 8              8.6  1,720   200x  ms\n"
            "8 of 8, 100 hosts    15  >60 s      -  ms\n"
            "memory             12.2      -      -  MB\n"
            "A note.\n",
            self.shown(as_json=False),
        )

    def test_json_has_one_object_per_row_and_nothing_else(self) -> None:
        objects = [json.loads(line) for line in self.shown(as_json=True).splitlines()]
        self.assertEqual(
            {"name": "8 of 8", "ours": 8.6, "other": 1720.0, "ratio": 200.0, "unit": "ms"},
            objects[0],
        )
        self.assertEqual([">60 s", None], [each["other"] for each in objects[1:]])


class RatiosTest(base.BaseTestCase):
    def test_filter_is_no_dearer_than_compute_capabilities(self) -> None:
        """The benchmark itself refuses filters that do not pass all hosts."""
        command = [sys.executable, "-m", "benchmarks.scheduling", "--json", "--burst", "0"]
        done = subprocess.run([*command, "--hosts", "200"], capture_output=True, text=True)
        self.assertEqual(0, done.returncode, done.stderr)
        rows = {each["name"]: each for each in map(json.loads, done.stdout.splitlines())}
        for ours in ("GPUFilter", "GPUFilter and GPUWeigher"):
            stock = rows[f"200 hosts: {ours}, ComputeCapabilitiesFilter"]
            self.assertGreater(stock["ratio"], 1, stock)
        self.assertLess(rows["200 hosts: what is kept"]["ours"], 2)  # KB for each host

    def test_vgpus_reads_no_file_twice(self) -> None:
        """The benchmark itself refuses to time a look that misses something."""
        root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        mediated, profiles = vgpus.rows(root, runs=1, count=1)
        self.assertIn("1 cards, 20 types, 32 VFs: mediated devices, 2592 files", mediated.name)
        self.assertIn("profiles, 96 files", profiles.name)

    def test_the_weigher_knows_which_sets_are_free(self) -> None:
        ours = board_race.race(20, 8, 20, [ram.RAMWeigher(), GPUWeigher()])
        other = board_race.race(20, 8, 20, [ram.RAMWeigher()])
        # By other orders of the hosts 2 to 13 times as many
        self.assertGreater(other.refused, 2 * ours.refused)
        self.assertGreater(ours.instances, 100)
