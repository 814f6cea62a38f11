# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import unittest
from types import SimpleNamespace
from typing import Any

from keystoneauth1 import exceptions as ks_exc
from openstack import exceptions as sdk_exc
from osc_lib import exceptions

from osc_gpu.fleet import projects


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
        for wrong, said in (
            (None, "Keystone has no project other"),
            (sdk_exc.DuplicateResource("two"), "several projects are called other"),
            (sdk_exc.HttpException("boom"), "Keystone: .*boom"),
            (ks_exc.ConnectFailure("gone"), "Keystone: gone"),
        ):
            with self.assertRaisesRegex(exceptions.CommandError, said):
                self.ids("other", answers=wrong)
