# SPDX-License-Identifier: Apache-2.0
"""Who may be a guest's process, by a generated /proc. Real ones: tests/unit/privsep."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import subprocess

import fixtures
from oslotest import base

from nova_gpu.host import child
from nova_gpu.host.container import guest_mounts, guest_processes
from nova_gpu.host.roots import Roots

UIDS = [(1_000_000, 65_536)]


class RangesTest(base.BaseTestCase):
    def test_as_nova_writes_them(self) -> None:
        self.assertEqual(
            [(1_000_000, 1), (1_000_001, 65_535)],
            guest_processes.ranges(["0:1000000:1", "1:1000001:65535", "nonsense", "1:2"]),
        )


class MayBeLeftTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        proc = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.roots = dataclasses.replace(Roots(), proc=proc)
        self.process(1, 0, "systemd", 0)
        self.process(700, 1, "libvirt_lxc", 0)
        self.process(701, 700, "init", 1_000_000)

    def process(self, pid: int, parent: int, name: str, uid: int) -> None:
        folder = self.roots.proc / str(pid)
        folder.mkdir()
        text = f"Name:\t{name}\nPPid:\t{parent}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
        (folder / "status").write_text(text)

    def assertMayBeLeft(self, expected: bool) -> None:
        self.assertIs(expected, guest_processes.may_be_left(self.roots, UIDS))

    def test_what_runs_in_a_container(self) -> None:
        self.process(702, 701, "python3", 1_001_000)
        self.process(800, 1, "nvidia-persistenced", 120)
        self.process(801, 1, "of_the_next_range", 1_065_536)
        self.assertMayBeLeft(False)

    def test_what_is_outside_of_all(self) -> None:
        self.process(702, 1, "python3", 1_001_000)
        self.assertMayBeLeft(True)

    def test_parents_in_a_ring(self) -> None:
        """A process may end and its number be given away while it is read."""
        self.process(702, 703, "python3", 1_001_000)
        self.process(703, 702, "python3", 1_001_000)
        self.assertMayBeLeft(True)

    def test_ended_meanwhile(self) -> None:
        (self.roots.proc / "900").mkdir()
        self.assertMayBeLeft(False)

    def test_what_cannot_be_read_may_be_one(self) -> None:
        (self.roots.proc / "900/status").mkdir(parents=True)
        self.assertMayBeLeft(True)

    def test_others_are_hidden(self) -> None:
        (self.roots.proc / "1/status").unlink()
        (self.roots.proc / "1").rmdir()
        self.assertMayBeLeft(True)

    def test_without_maps_nothing_tells(self) -> None:
        self.assertTrue(guest_processes.may_be_left(self.roots, []))


class HoldersTest(base.BaseTestCase):
    """What runs in one container and has a device open, by real processes in a generated /proc"""

    def setUp(self) -> None:
        super().setUp()
        self.proc = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def holder(self, group: str, *devices: str) -> subprocess.Popen[bytes]:
        code = f"f = [open(each) for each in {devices!r}]; print(flush=True); input()"
        pipe = subprocess.PIPE
        process = subprocess.Popen(["python3", "-c", code], stdin=pipe, stdout=pipe)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        assert process.stdout
        process.stdout.readline()
        folder = self.proc / str(process.pid)
        folder.mkdir()
        (folder / "cgroup").write_text(f"4:devices:/machine/{group}\n")
        for name in ("fd", "comm", "stat"):
            (folder / name).symlink_to(f"/proc/{process.pid}/{name}")
        return process

    def test_of_one_container(self) -> None:
        mine = self.holder("lxc-4710-instance-00000001.libvirt-lxc/user", "/dev/full")
        named_by_systemd = self.holder("machine-lxc\\x2d4710\\x2dinstance.scope", "/dev/full")
        another_device = self.holder("lxc-4710-instance-00000001.libvirt-lxc", "/dev/zero")
        anothers = self.holder("lxc-14710-instance-00000002.libvirt-lxc", "/dev/full")
        full = os.stat("/dev/full").st_rdev
        request = {
            "proc": str(self.proc),
            "controller": 4710,
            "devices": [[os.major(full), os.minor(full)]],
            "timeout_s": 60,
        }
        command = child.script(guest_processes.SCRIPT, json.dumps(request))
        answer = json.loads(child.run(command, 120))
        expected = {f"python3 (pid {each.pid})" for each in (mine, named_by_systemd)}
        self.assertEqual((expected, []), ({*answer["ended"]}, answer["left"]))
        self.assertEqual([-9, -9], [mine.wait(60), named_by_systemd.wait(60)])
        self.assertEqual([None, None], [another_device.poll(), anothers.poll()])


class MountsTest(base.BaseTestCase):
    def test_of_what_is_no_container(self) -> None:
        """tests/lxc has real ones."""
        said = self.assertRaises(
            child.Failed, guest_mounts.unmount, os.getpid(), ["/dev/nvidia0"], 60
        )
        self.assertIn("is none of libvirt_lxc", str(said))
