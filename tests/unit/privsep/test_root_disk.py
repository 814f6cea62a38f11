# SPDX-License-Identifier: Apache-2.0
"""The owners of a container's files"""

from __future__ import annotations

import os
import pathlib

import fixtures
import nova.conf
import nova.privsep
from oslo_config import fixture as config_fixture
from oslotest import base

import nova_gpu.privsep.root_disk

INSTANCE = "7d8f6a52-5c0e-4a3c-9d6b-4f1f0a2b3c4d"


class RootDiskTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("not root: it may give files to no other user")
        self.instances = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        in_process = fixtures.MockPatchObject(nova.privsep.sys_admin_pctxt, "client_mode", False)
        self.useFixture(in_process)
        config = self.useFixture(config_fixture.Config(nova.conf.CONF)).config
        config(instances_path=str(self.instances))
        config(group="libvirt", uid_maps=["0:100000:1000"], gid_maps=["0:200000:1000"])
        self.root = self.instances / INSTANCE / "rootfs"
        (self.root / "home/user").mkdir(parents=True)
        os.chown(self.root / "home/user", 1, 2)
        (self.root / "outside").symlink_to("/etc/passwd")

    def owners(self) -> list[tuple[int, int]]:
        paths = [self.root, *(self.root / name for name in ("home", "home/user", "outside"))]
        return [(path.lstat().st_uid, path.lstat().st_gid) for path in paths]

    def test_each_id_is_the_hosts(self) -> None:
        shifted = [(100000, 200000)] * 2 + [(100001, 200002), (100000, 200000)]
        for _ in range(2):  # what has them already, as at the next start, stays
            nova_gpu.privsep.root_disk.shift(INSTANCE)
            self.assertEqual(shifted, self.owners())
        self.assertEqual(0, pathlib.Path("/etc/passwd").stat().st_uid)

    def test_no_path_is_taken(self) -> None:
        before = self.owners()
        for name in ("..", f"{INSTANCE}/rootfs/home", "/etc"):
            self.assertRaises(ValueError, nova_gpu.privsep.root_disk.shift, name)
        self.assertEqual(before, self.owners())
