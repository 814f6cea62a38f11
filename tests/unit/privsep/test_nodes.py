# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pathlib
import stat
import unittest

import fixtures
import nova.conf
import nova.privsep
from oslo_config import fixture as config_fixture
from oslotest import base

import nova_gpu.privsep.nodes
import nova_gpu.privsep.root_disk
from nova_gpu.host import roots as host_roots
from tests.fixtures.nodes import Nodes
from tests.fixtures.verbs import VerbTestCase

ONE, TWO = "0000:18:00.0", "0000:88:00.0"
EVERY = [
    *("/dev/dri/card1", "/dev/dri/renderD129", "/dev/kfd"),
    *("/dev/dri/card2", "/dev/dri/renderD130", "/dev/nvidia-modeset"),
]

ROOT = unittest.skipIf(os.getuid() != 0, "only root can make device nodes")


class NodesTestCase(VerbTestCase):
    def setUp(self) -> None:
        super().setUp(Nodes.FILES if os.getuid() else Nodes.DEVICES)
        self.host.add_gpu(ONE, "1002", "74a1")
        self.host.add_gpu(TWO, "1002", "74a1")


class TestOpenToGuests(NodesTestCase):
    def modes(self) -> dict[str, int]:
        dev = self.host.roots.dev
        return {
            str(path.relative_to(dev)): stat.S_IMODE(path.stat().st_mode)
            for path in dev.rglob("*")
            if not path.is_dir()
        }

    @ROOT
    def test_the_cards_nodes_and_no_others(self) -> None:
        self.assertEqual(
            ["/dev/dri/card1", "/dev/dri/renderD129", "/dev/kfd"],
            nova_gpu.privsep.nodes.open_to_guests(ONE, EVERY),
        )
        self.assertEqual(
            {
                "dri/card1": 0o666,
                "dri/renderD129": 0o666,
                "kfd": 0o666,
                "dri/card2": 0o660,
                "dri/renderD130": 0o660,
            },
            self.modes(),
        )
        self.assertEqual([], nova_gpu.privsep.nodes.open_to_guests(ONE, EVERY))

    @ROOT
    def test_what_the_guest_gets_and_no_others(self) -> None:
        paths = ["/dev/dri/renderD129", "/dev/kfd", "/dev/dri/renderD130", "/dev/../etc/shadow"]
        self.assertEqual(paths[:2], nova_gpu.privsep.nodes.open_to_guests(ONE, paths))
        self.assertEqual(0o660, self.modes()["dri/card1"])

    @ROOT
    def test_there_and_back(self) -> None:
        before = self.modes()
        self.assertEqual([], nova_gpu.privsep.nodes.opened_to_guests())
        nova_gpu.privsep.nodes.open_to_guests(ONE, EVERY)
        self.assertEqual(sorted(EVERY[:3]), sorted(nova_gpu.privsep.nodes.opened_to_guests()))
        self.assertEqual(EVERY[:3], nova_gpu.privsep.nodes.close_to_guests(EVERY))
        self.assertEqual(before, self.modes())
        self.assertEqual([], nova_gpu.privsep.nodes.close_to_guests(EVERY))

    @ROOT
    def test_what_somebody_else_has_changed_since_stays(self) -> None:
        kfd = self.host.roots.dev / "kfd"
        for theirs in (0o640, 0o660):
            nova_gpu.privsep.nodes.open_to_guests(ONE, ["/dev/kfd"])
            kfd.chmod(theirs)
            self.assertEqual([], nova_gpu.privsep.nodes.close_to_guests(["/dev/kfd"]))
            self.assertEqual(theirs, self.modes()["kfd"])
        self.assertEqual([], nova_gpu.privsep.nodes.opened_to_guests())

    def test_a_node_that_nobody_opened_is_not_closed(self) -> None:
        kfd = self.host.roots.dev / "kfd"
        kfd.chmod(0o666)
        self.assertEqual([], nova_gpu.privsep.nodes.open_to_guests(ONE, ["/dev/kfd"]))
        paths = ["/dev/kfd", "/dev/../kfd", "/dev/absent/node"]
        self.assertEqual([], nova_gpu.privsep.nodes.close_to_guests(paths))
        self.assertEqual(0o666, self.modes()["kfd"])

    def test_where_no_mode_can_be_noted_it_stays_open(self) -> None:
        """By a folder for terminals, which has no such attributes"""
        master, slave = os.openpty()
        self.addCleanup(os.close, master)
        self.addCleanup(os.close, slave)
        path = pathlib.Path(os.ttyname(slave))
        roots = host_roots.Roots(dev=path.parent)
        self.assertTrue(nova_gpu.privsep.nodes._open(f"/dev/{path.name}", roots))
        self.assertFalse(nova_gpu.privsep.nodes._close(f"/dev/{path.name}", roots))
        self.assertEqual(0o006, stat.S_IMODE(os.fstat(slave).st_mode) & 0o006)

    def test_what_is_no_device_stays_as_it_is(self) -> None:
        dri = self.host.roots.dev / "dri"
        for name in ("card1", "renderD129"):
            (dri / name).unlink()
            (dri / name).touch(0o600)
        (self.host.roots.dev / "kfd").unlink()
        before = self.modes()
        self.assertEqual([], nova_gpu.privsep.nodes.open_to_guests(ONE, EVERY))
        self.assertEqual(before, self.modes())

    def test_a_link_is_not_followed(self) -> None:
        outside = self.device(self.root / "outside")
        (self.host.roots.dev / "kfd").unlink()
        (self.host.roots.dev / "kfd").symlink_to(outside)
        self.assertNotIn("/dev/kfd", nova_gpu.privsep.nodes.open_to_guests(ONE, EVERY))
        self.assertEqual(0o600, stat.S_IMODE(outside.stat().st_mode))

    def test_nothing_outside_of_dev(self) -> None:
        dri = self.host.roots.dev / "dri"
        dri.rename(self.root / "dri")
        dri.symlink_to(self.root / "dri")
        self.assertNotIn("/dev/dri/card1", nova_gpu.privsep.nodes.open_to_guests(ONE, EVERY))
        self.assertEqual(0o660, stat.S_IMODE((self.root / "dri/card1").stat().st_mode))

    def device(self, path: pathlib.Path) -> pathlib.Path:
        if os.getuid():
            path.touch(0o600)
        else:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        return path


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
