# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest
from types import SimpleNamespace
from typing import Any

from osc_gpu import usage


def server(name: str, status: str, on_stop: str = "", task_state: str | None = None) -> Any:
    specs = {"gpus": "= 4"} | ({"gpu:on_stop": on_stop} if on_stop else {})
    return SimpleNamespace(
        id=name,
        name=name,
        status=status,
        task_state=task_state,
        host_id="host",
        flavor={"extra_specs": specs},
    )


class OwnTest(unittest.TestCase):
    def test_who_gave_them_back_has_none(self) -> None:
        listed = [
            server("runs", "ACTIVE", "release"),
            server("gave", "SHUTOFF", "release"),
            server("keeps", "SHUTOFF", "keep"),
            server("silent", "SHUTOFF"),
            server("misspelt", "SHUTOFF", "relaese"),
            server("starts", "SHUTOFF", "release", "powering-on"),
        ]
        compute = SimpleNamespace(servers=lambda details: listed)
        rows = list(usage._of_project(SimpleNamespace(compute=compute)))
        found = {name: gpus for _, name, _, gpus, *_ in rows}
        self.assertEqual(0, found.pop("gave"))
        self.assertEqual(dict.fromkeys(("runs", "keeps", "silent", "misspelt", "starts"), 4), found)
