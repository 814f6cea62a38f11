# SPDX-License-Identifier: Apache-2.0
"""What the tests share that call the verbs in their own process."""

from __future__ import annotations

import pathlib

import fixtures
import nova.privsep
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from tests.fixtures import hosts
from tests.fixtures.nodes import Nodes


class VerbTestCase(base.BaseTestCase):
    """A generated host on which the verbs act."""

    def setUp(self, nodes: Nodes = Nodes.NONE) -> None:
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(
            fixtures.MockPatchObject(nova.privsep.sys_admin_pctxt, "client_mode", False)
        )
        self.host = hosts.Host(self.root, nodes=nodes)
        self.config = self.useFixture(config_fixture.Config(CONF)).config
        for name in ("sysfs", "dev", "proc"):
            self.config(group="gpu", **{f"{name}_root": str(getattr(self.host.roots, name))})
