# SPDX-License-Identifier: Apache-2.0
"""Who may be a guest's process, by a generated /proc. Real ones: tests/unit/privsep."""

from __future__ import annotations

import pathlib

import fixtures
from oslotest import base

from nova_gpu.host.container import guest_processes
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
        self.roots = Roots(proc=pathlib.Path(self.useFixture(fixtures.TempDir()).path))
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
