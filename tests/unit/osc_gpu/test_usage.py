# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

from osc_gpu import rest, usage


class LimitsTest(unittest.TestCase):
    def test_a_class_that_is_not_registered_is_explained(self) -> None:
        for registered, explained in (("class:PGPU",), True), (("class:PGPU", "class:VGPU"), False):
            items = [SimpleNamespace(resource_name=n, default_limit=4) for n in registered]
            connection = SimpleNamespace(
                session=SimpleNamespace(get_project_id=lambda: "p1"),
                config=SimpleNamespace(region_name=""),
                identity=SimpleNamespace(
                    registered_limits=lambda items=items: items, limits=lambda project_id: []
                ),
            )
            app: Any = SimpleNamespace(stderr=io.StringIO())
            shows = usage.ShowUsage(app, None)
            parsed = shows.get_parser("openstack").parse_args(["--limits"])
            with (
                mock.patch.object(shows, "connection", lambda _, c=connection: c),
                mock.patch.object(rest, "placement", lambda *_: {"usages": {"PGPU": 2}}),
            ):
                _, rows = shows.take_action(parsed)
            vgpus = "not registered" if explained else "4"
            self.assertEqual([("class:PGPU", 2, "4"), ("class:VGPU", 0, vgpus)], list(rows))
            text = app.stderr.getvalue()
            self.assertEqual(explained, "Keystone has no limit for it" in text, text)
