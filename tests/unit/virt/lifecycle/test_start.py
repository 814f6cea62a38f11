# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import csv
import pathlib
import unittest

from nova import objects

from nova_gpu.virt.lifecycle.start import STEPS, Kind, Step

TABLE = pathlib.Path(__file__).parents[4] / "doc/source/reference/starts.csv"


class TableTest(unittest.TestCase):
    def test_what_operators_read(self) -> None:
        with TABLE.open(newline="") as file:
            rows = list(csv.DictReader(file))
        shown = {row["Start"]: {step for step in row if row[step] == "yes"} for row in rows}
        self.assertEqual({kind.value: {step.value for step in STEPS[kind]} for kind in Kind}, shown)
        self.assertEqual(["Start", *(step.value for step in Step)], list(rows[0]))

    def test_what_nova_spawns(self) -> None:
        for task, host, kind in (
            ("spawning", "here", Kind.SPAWN),
            ("spawning", None, Kind.SPAWN),
            ("rebuild_spawning", "here", Kind.REBUILD),
            ("rebuild_spawning", "another", Kind.EVACUATION),
        ):
            instance = objects.Instance(task_state=task, host=host)
            self.assertEqual(kind, Kind.of_spawn(instance, "here"))
