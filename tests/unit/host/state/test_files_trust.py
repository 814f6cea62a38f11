# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pathlib

import fixtures
from oslotest import base

from nova_gpu.host.state import files

UID = os.getuid()


class TestDistrust(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = pathlib.Path(self.useFixture(fixtures.TempDir()).path) / "file"
        self.path.touch(0o644)

    def distrust(self, owner_uid: int = UID) -> str | None:
        return files.distrust(self.path.stat(), owner_uid)

    def test_the_owners(self) -> None:
        self.assertIsNone(self.distrust())

    def test_another_owner(self) -> None:
        self.assertIn(f"uid {UID + 1}", self.distrust(UID + 1) or "")

    def test_writable_for_everybody(self) -> None:
        self.path.chmod(0o602)
        self.assertIn("0602", self.distrust() or "")

    def test_writable_for_a_group(self) -> None:
        if UID:
            self.skipTest("not root: no file is given to a group")
        self.path.chmod(0o664)
        self.assertIsNone(self.distrust())
        os.chown(self.path, UID, 1000)
        self.assertEqual("the group 1000 can write to it", self.distrust())
        self.path.chmod(0o644)
        self.assertIsNone(self.distrust())
