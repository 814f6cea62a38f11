# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib

import fixtures
import testtools

from lab.cloud import cgroups

V1 = """\
23 28 0:21 / /sys rw,relatime shared:7 - sysfs sysfs rw
40 23 0:30 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
41 40 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
42 40 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
43 40 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
"""
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"


class DetectTest(testtools.TestCase):
    def _reason(self, mountinfo: str) -> str:
        return str(self.assertRaises(cgroups.Unservable, cgroups.detect, mountinfo))

    def test_none(self) -> None:
        self.assertIn("no cgroup filesystem", self._reason(V1.splitlines()[0]))

    def test_read_only(self) -> None:
        reason = self._reason(V2.replace("rw,nosuid", "ro,nosuid"))
        self.assertIn("/sys/fs/cgroup is mounted read-only", reason)
        self.assertIn("remount,rw", reason)

    def test_read_only_in_one_v1_hierarchy(self) -> None:
        reason = self._reason(V1.replace("devices rw", "devices ro"))
        self.assertIn("/sys/fs/cgroup/devices is mounted read-only", reason)

    def test_missing_controller_is_named(self) -> None:
        without = "".join(line for line in V1.splitlines(True) if "devices" not in line)
        self.assertIn("lacks the controllers devices,", self._reason(without))


class GuestGroupTest(testtools.TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def _group(self, name: str, *pids: int) -> pathlib.Path:
        path = self.root / "machine" / name
        (path / "inner").mkdir(parents=True)
        (path / "inner/cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        return path

    def test_found_with_pid_domain_and_what_runs_in_it(self) -> None:
        path = self._group("lxc-4711-instance-0000000a.libvirt-lxc", 12, 7)
        self._group("qemu-1-other.libvirt-qemu")
        (group,) = cgroups.guest_groups(self.root)
        self.assertEqual(cgroups.GuestGroup(path, 4711, "instance-0000000a"), group)
        self.assertEqual([7, 12], group.pids)
