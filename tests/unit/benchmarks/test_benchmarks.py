# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks print, and that our side of them is no dearer."""

from __future__ import annotations

import json
import subprocess
import sys

from nova.scheduler.weights import ram
from oslotest import base

from benchmarks import board_race, packing, pinned
from nova_gpu.scheduler.weights import GPUWeigher


class RatiosTest(base.BaseTestCase):
    def test_filter_is_no_dearer_than_compute_capabilities(self) -> None:
        """The benchmark itself refuses filters that do not pass all hosts."""
        command = [sys.executable, "-m", "benchmarks.scheduling", "--json", "--burst", "0"]
        done = subprocess.run([*command, "--hosts", "200"], capture_output=True, text=True)
        self.assertEqual(0, done.returncode, done.stderr)
        rows = {row["name"]: row for row in map(json.loads, done.stdout.splitlines())}
        for ours in ("GPUFilter", "GPUFilter and GPUWeigher"):
            stock = rows[f"200 hosts: {ours}, ComputeCapabilitiesFilter"]
            self.assertGreater(stock["ratio"], 0.7, stock)  # other load moves it by a quarter
        self.assertLess(rows["200 hosts: what is kept"]["ours"], 2)  # KB for each host

    def test_the_weigher_knows_which_sets_are_free(self) -> None:
        ours = board_race.race(20, 8, 20, [ram.RAMWeigher(), GPUWeigher()])
        other = board_race.race(20, 8, 20, [ram.RAMWeigher()])
        # By other orders of the hosts 2 to 13 times as many
        self.assertGreater(other.refused, 2 * ours.refused)
        self.assertGreater(ours.instances, 100)

    def test_packs_better_than_nova(self) -> None:
        """Of 8 hosts, 4 of which could be left whole"""
        for stream, way, schedulers, least in (
            ("cards", "one", 1, 1),
            ("cards", "50", 3, 0),
            ("others", "one", 1, 0),
            ("vgpus", "multi", 1, 0),
        ):
            ours, other = (
                packing.fill(8, stream, way, schedulers, ours=ours) for ours in (True, False)
            )
            with self.subTest(stream=stream, way=way, schedulers=schedulers):
                self.assertGreaterEqual(ours.fits, max(other.fits, ours.best - least))
        several = packing.fill(30, "cards", "50", 3, ours=True)
        self.assertEqual(several.best, several.fits)
        self.assertLess(several.retries, 200)  # with Nova's weighers alone some 240

    def test_a_fleet_of_pinned_guests(self) -> None:
        (ours, most), (other, _) = (pinned.fill(8, ours=ours) for ours in (True, False))
        self.assertGreaterEqual(ours.gpus, max(other.gpus, 0.9 * most))
        for schedulers in (1, 2):
            outcome, _ = pinned.fill(8, ours=True, schedulers=schedulers, seconds=2.0, share=0.8)
            self.assertLessEqual(outcome.second, 1)
            self.assertEqual(0, outcome.refused)
