# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
import unittest
from unittest import mock

from benchmarks import placement


class CellTest(unittest.TestCase):
    def test_a_cloud_of_either_shape_answers(self) -> None:
        for shape in ("ours", "other"):
            busy = mock.patch.object(placement, "DEADLINE_S", 200)
            with self.subTest(shape=shape), busy:
                found = placement.cell(shape, 1, tuned=True)
                assert isinstance(found, float), found
                self.assertGreater(found, 0)

    def test_past_the_deadline_there_is_no_figure(self) -> None:
        with mock.patch.object(placement, "DEADLINE_S", 0.1):
            self.assertEqual(">0.1 s", placement.cell("other", 1, tuned=False))

    def test_without_memory_for_its_cloud_a_cell_fails(self) -> None:
        with (
            mock.patch.object(placement, "MEMORY", 64 << 20),
            self.assertRaisesRegex(RuntimeError, "benchmarks.placement_cell"),
        ):
            placement.cell("ours", 1, tuned=False)


class OutcomeTest(unittest.TestCase):
    def test_what_a_cell_says(self) -> None:
        for said, expected in (
            (["ready", "[0.5, 0.25, 1.0]"], 500.0),
            (["ready", "memory"], ">4 GiB"),
            (["ready"], None),
            (["Traceback"], None),
            ([], None),
        ):
            code = f"for line in {said!r}: print(line, flush=True)"
            with (
                self.subTest(said=said),
                subprocess.Popen(
                    [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
                ) as child,
            ):
                self.assertEqual(expected, placement._outcome(child))
