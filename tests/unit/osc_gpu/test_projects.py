# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest
from types import SimpleNamespace
from typing import Any
from unittest import mock

from keystoneauth1 import exceptions as ks_exc
from openstack import exceptions as sdk_exc
from osc_lib import exceptions

from osc_gpu import projects


class ProjectsTest(unittest.TestCase):
    def ids(self, *named: str, answers: Any = None) -> tuple[str, ...]:
        def find_project(named: str) -> Any:
            if isinstance(answers, Exception):
                raise answers
            return {"lab": SimpleNamespace(id="p1")}.get(named)

        identity = SimpleNamespace(find_project=find_project)
        return projects.ids(SimpleNamespace(identity=identity), named)

    def test_names(self) -> None:
        self.assertEqual(("p1", "p1"), self.ids("lab", "lab"))
        for refused in (sdk_exc.ForbiddenException("no"), ks_exc.EndpointNotFound()):
            self.assertEqual(("p2",), self.ids("p2", answers=refused))
        listed = [SimpleNamespace(id="p1", name="lab"), SimpleNamespace(id="p3", name="")]
        for answers, shown in (
            (lambda: listed, ["lab", "p2", "p3"]),
            (mock.Mock(side_effect=sdk_exc.ForbiddenException("no")), ["p1", "p2", "p3"]),
        ):
            connection = SimpleNamespace(identity=SimpleNamespace(projects=answers))
            known = projects.names(connection)
            cells = [projects.cell(project, known) for project in ("p1", "p2", "p3")]
            self.assertEqual(shown, [getattr(c, "human_readable", c.__str__)() for c in cells])
            self.assertEqual("p1", getattr(cells[0], "machine_readable", cells[0].__str__)())
        for wrong, message in (
            (None, "Keystone has no project other"),
            (sdk_exc.DuplicateResource("two"), "several projects are called other"),
            (sdk_exc.HttpException("boom"), "Keystone: .*boom"),
            (ks_exc.ConnectFailure("gone"), "Keystone: gone"),
        ):
            with self.assertRaisesRegex(exceptions.CommandError, message):
                self.ids("other", answers=wrong)
