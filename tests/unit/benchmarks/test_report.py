# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import io
import json

from oslotest import base

from benchmarks import report

ROWS = (
    report.Row("8 of 8", 8.6, 1720.0, "ms"),
    report.Row("8 of 8, 100 hosts", 15, ">60 s", "ms"),
    report.Row("memory", 12.25, None, "MB"),
)


def shown(**arguments: bool) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        report.show(ROWS, as_json=arguments["as_json"], notes=("A note.",))
    return output.getvalue()


class TestReport(base.BaseTestCase):
    def test_ratio_is_of_two_numbers(self) -> None:
        self.assertEqual([200.0, None, None], [row.ratio for row in ROWS])
        self.assertIsNone(report.Row("nothing", 0.0, 1.0, "ms").ratio)

    def test_table(self) -> None:
        self.assertEqual(
            "                   ours  other  ratio  unit\n"
            "8 of 8              8.6  1,720   200x  ms\n"
            "8 of 8, 100 hosts    15  >60 s      -  ms\n"
            "memory             12.2      -      -  MB\n"
            "A note.\n",
            shown(as_json=False),
        )

    def test_json_has_one_object_per_row_and_nothing_else(self) -> None:
        objects = [json.loads(line) for line in shown(as_json=True).splitlines()]
        self.assertEqual(
            {"name": "8 of 8", "ours": 8.6, "other": 1720.0, "ratio": 200.0, "unit": "ms"},
            objects[0],
        )
        self.assertEqual(3, len(objects))
        self.assertEqual(">60 s", objects[1]["other"])
        self.assertIsNone(objects[2]["ratio"])
