# SPDX-License-Identifier: Apache-2.0
"""Who may be a guest's process, by a generated /proc; and the end of real ones.

Through the privileged daemon: tests/unit/privsep.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import subprocess
import sys

import fixtures
from oslotest import base

from nova_gpu.core.vgpu.vgpu import Slot, slot_number
from nova_gpu.host import processes
from nova_gpu.host.container import guest_processes
from nova_gpu.host.container.guest_processes import Process
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio.binding import RebindSettings
from tests.fixtures import cards, holding, pci
from tests.fixtures.bases.host import HostTestCase
from tests.fixtures.holding import ControlGroup, Holding

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
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.set_up("proc")

    def set_up(self, name: str) -> None:
        """Have a container that runs"""
        self.roots = Roots(proc=self.root / name)
        self.roots.proc.mkdir()
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

    def test_who_may_be_one(self) -> None:
        """Outside of all containers; parents in a ring, as a process may end and its number be
        given away while it is read; with the name of libvirt's controller, which any user can give
        to a process; and what cannot be read"""
        python, libvirt = ("python3", 1_001_000), ("libvirt_lxc", 1_000_000)
        for number, together in enumerate(
            (
                [(702, 1, *python)],
                [(702, 703, *python), (703, 702, *python)],
                [(900, 1, *libvirt), (901, 900, *python)],
            )
        ):
            with self.subTest(together):
                self.set_up(f"{number}")
                for process in together:
                    self.process(*process)
                self.assertMayBeLeft(True)
        self.set_up("unread")
        (self.roots.proc / "900").mkdir()  # ended meanwhile
        self.assertMayBeLeft(False)
        (self.roots.proc / "900/status").mkdir()
        self.assertMayBeLeft(True)

    def test_without_maps_nothing_tells(self) -> None:
        self.assertTrue(guest_processes.may_be_left(self.roots, []))

    def test_who_computes_by_what_the_driver_says(self) -> None:
        """A program of the host does not count, nor does another MIG instance."""
        self.process(702, 701, "python3", 1_001_000)
        self.process(800, 1, "dcgmi", 120)
        rows = [(701, 9, 0), (702, 8, 0), (800, 9, 0), (999, 9, 0)]
        self.useFixture(
            fixtures.MonkeyPatch("nova_gpu.host.nvidia.nvml.computing", lambda *_: rows)
        )
        card = cards.card("0000:3b:00.0")
        slot = Slot(card.address, "1g.18gb", slot_number(9, 0))
        for device, pids in ((card, [701, 702]), (slot, [701])):
            card_processes = guest_processes.computing(device, self.roots, UIDS, 60)
            self.assertEqual(pids, sorted(process.pid for process in card_processes))
        (self.roots.proc / "702/status").unlink()
        (self.roots.proc / "701/cmdline").write_bytes(b"a\x1b[2K\n\xff\0-b\0")
        (process,) = guest_processes.computing(card, self.roots, UIDS, 60)
        text = "a\ufffd[2K \ufffd -b (pid 701): NVIDIA's driver says that it computes there"
        self.assertEqual(text, str(process))

    def test_others_are_hidden(self) -> None:
        (self.roots.proc / "1/status").unlink()
        (self.roots.proc / "1").rmdir()
        (self.roots.proc / "self").symlink_to("700")
        self.assertMayBeLeft(True)

    def test_in_the_group_of_a_container(self) -> None:
        """It has the user root of the host, as one that has entered the guest from outside."""
        self.process(702, 1, "sh", 0)
        group = self.roots.proc / "702/cgroup"
        group.write_text("0::/machine.slice/machine-lxc\\x2d700\\x2dinstance.scope/libvirt\n")
        self.assertMayBeLeft(False)
        group.write_text("4:devices:/machine/lxc-600-instance-00000001.libvirt-lxc\n")
        self.assertMayBeLeft(True)


class EndTest(HostTestCase):
    """The card's node has the number of /dev/full."""

    CARD = "0000:81:00.0"

    def setUp(self) -> None:
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("not root: processes of other users can neither be seen nor ended")
        self.host.add_gpu(self.CARD, "10de", "1e04", companions=[pci.AUDIO])
        device = self.host.path("0000:81:00.1") / "sound/card0/controlC0"
        device.mkdir(parents=True)
        (device / "dev").write_text("1:7\n")
        # Of no guest of this machine, and of no other test
        self.uid = 1_500_000_000 + os.getpid() % 100_000 * 1000
        # The processes of this test alone: others' are not to be ended.
        self.proc = self.root / "own-processes"
        self.proc.mkdir()

    def hold(self, code: str, *, wait: bool = True) -> Holding:
        become = f"\nos.setgroups([]); os.setgid({self.uid}); os.setuid({self.uid})\n"
        # Its user may not be able to read Python's modules.
        steps = (code, become) if wait else ("import ctypes, mmap, threading, time", become, code)
        holder = self.useFixture(Holding("".join(steps), wait=wait))
        (self.proc / str(holder.pid)).symlink_to(holder.folder)
        return holder

    def end(self) -> tuple[list[Process], list[Process]]:
        roots = dataclasses.replace(self.host.roots, proc=self.proc)
        settings = RebindSettings(roots, self.root / "records", 60)
        gpu = self.gpu_at(self.CARD)
        return guest_processes.end(gpu, settings, [(self.uid, 1000)])

    def assertEnds(self, holder: Holding) -> None:
        ended, left = self.end()
        self.assertEqual(([holder.pid], []), ([process.pid for process in ended], left))
        self.assertEqual(-9, holder.process.wait(60))

    def test_received_from_a_guest_that_has_ended(self) -> None:
        if not holding.can_mount():
            self.skipTest(holding.NO_MOUNT)
        self.assertEnds(self.hold(holding.received(self.root / "x")))

    def test_what_has_it_nowhere_that_the_kernel_shows(self) -> None:
        """It is not ended, because other programs may use the same user ids, and the card waits."""
        for code, wait in ((holding.IN_A_SOCKET, True), (holding.IN_IO_URING, False)):
            holder = self.hold(code, wait=wait)
            if holder.words == [b"refused"]:
                self.skipTest("this machine's kernel has no io_uring ring without a descriptor")
            self.assertNotIn(holding.FULL, processes.open_devices(holder.folder))
            ended, (left,) = self.end()
            self.assertEqual(([], holder.pid), (ended, left.pid))
            self.assertIn("outside all running guests, and may hide what it has open", str(left))
            self.assertIn("uid_maps", left.remedy)
            holder.process.kill()
            holder.process.wait(60)
            self.assertEqual(([], []), self.end())

    def test_in_the_control_group_of_a_guest_that_has_ended(self) -> None:
        """Whatever it has open"""
        name = rb"machine-lxc\x2d4194305\x2dinstance.scope"
        group = self.useFixture(ControlGroup(name + b"/\xff"))
        holder = self.hold("pass")
        group.enter(holder.pid)
        self.assertEnds(holder)

    def end_by(self, *command: str, first: str = "") -> str:
        """Do it in a process that *command* starts and that does *first*; return what it finds."""
        code = f"""
import pathlib
from oslo_privsep import capabilities as caps
from nova_gpu.core import model
from nova_gpu.host import processes
from nova_gpu.host.container import guest_processes
from nova_gpu.host.pci import discovery
from nova_gpu.host.roots import Roots
from nova_gpu.host.vfio.binding import RebindSettings
{first}
roots = Roots(sysfs=pathlib.Path({str(self.host.roots.sysfs)!r}), proc=pathlib.Path("{self.proc}"))
gpu = discovery.card_at(model.PciAddress.parse({self.CARD!r}), roots)
settings = RebindSettings(roots, pathlib.Path("/nowhere"), 60)
print(guest_processes.end(gpu, settings, [({self.uid}, 1000)]))
"""
        run = [*command, sys.executable, "-c", code]
        done = subprocess.run(run, check=False, capture_output=True, text=True)
        return done.stdout or done.stderr

    def test_by_a_daemon_that_proc_hides_it_from(self) -> None:
        """A /proc with hidepid and a group, as guides to hardening have it, and the capabilities of
        nova-compute's privileged process."""
        holder = self.hold("file = open('/dev/full')")
        shell = f'mount -t proc -o hidepid=2,gid=65533 proc {self.proc} && exec "$@"'
        drop = """
kept = [caps.CAP_CHOWN, caps.CAP_DAC_OVERRIDE, caps.CAP_DAC_READ_SEARCH, caps.CAP_FOWNER,
        caps.CAP_NET_ADMIN, caps.CAP_SYS_ADMIN]
caps.drop_all_caps_except(kept, kept, [])
"""
        output = self.end_by("unshare", "-m", "sh", "-c", shell, "sh", first=drop)
        self.assertIn(f"pid={holder.pid}", output)
        self.assertEqual(-9, holder.process.wait(60))

    def test_what_cannot_be_read_has_not_ended(self) -> None:
        """In a container root may lack the right to look into processes."""
        holder = self.hold("file = open('/dev/full')")
        output = self.end_by("setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps=-all")
        self.assertIn(f"([], [Process(pid={holder.pid}, ", output)
        self.assertIn("what it has open cannot be read", output)
        self.assertIsNone(holder.process.poll())

    def test_computing_where_proc_hides_it(self) -> None:
        """nova-compute has no rights of root, and takes it for a guest's."""
        holder = self.hold("pass")
        code = f"""
import os, pathlib
from nova_gpu.host.container import guest_processes
from nova_gpu.host.nvidia import nvml
from nova_gpu.host.roots import Roots
from tests.fixtures import cards
os.setgroups([]); os.setgid(65534); os.setuid(65534)
nvml.computing = lambda *_: [(os.getpid(), 0, 0), ({holder.pid}, 0, 0)]
roots = Roots(proc=pathlib.Path("{holding.MOUNT_POINT}"))
print(guest_processes.computing(cards.card({self.CARD!r}), roots, [({self.uid}, 1000)], 60))
"""
        for hidepid in ("0", "1", "2"):
            mount = f"mount -t proc -o hidepid={hidepid},gid=65533 proc {holding.MOUNT_POINT}"
            command = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"]
            done = subprocess.run(
                [*command, sys.executable, "-c", code], check=False, capture_output=True, text=True
            )
            self.assertIn(f"[Process(pid={holder.pid}, ", done.stdout, f"{hidepid}: {done.stderr}")
            self.assertEqual(1, done.stdout.count("Process("), hidepid)
