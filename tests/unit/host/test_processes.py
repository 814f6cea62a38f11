# SPDX-License-Identifier: Apache-2.0
"""What real processes have open on the kernel of this machine, in all ways to have it."""

from __future__ import annotations

import contextlib
import os
import pathlib
import subprocess
import sys
import unittest

import fixtures
from oslotest import base

from nova_gpu.host import processes
from nova_gpu.host.roots import Roots
from tests.fixtures import holding
from tests.fixtures.holding import FULL, ZERO, Holding


class OpenDevicesTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)

    def hold(self, code: str, *before: str, wait: bool = True) -> Holding:
        return self.useFixture(Holding(code, *before, wait=wait))

    def assertOpen(self, holder: Holding, *, is_open: bool = True) -> None:
        self.assertEqual(is_open, FULL in processes.open_devices(holder.folder))

    def test_by_its_own_path(self) -> None:
        self.assertOpen(self.hold("file = open('/dev/full')"))
        self.assertOpen(self.hold("file = open('/etc/passwd')"), is_open=False)

    @unittest.skipUnless(holding.can_mount(), holding.NO_MOUNT)
    def test_mounted_at_another_path(self) -> None:
        """As any user of the host does it, and root of a guest."""
        path = self.root / "x"
        path.touch()
        shell = f'mount --bind /dev/full {path} && exec "$@"'
        holder = self.hold(
            f"file = open({str(path)!r})", "unshare", "-Urm", "sh", "-c", shell, "sh"
        )
        folder = f"{holder.folder}/fd"
        links = [os.readlink(f"{folder}/{name}") for name in os.listdir(folder)]
        self.assertIn(str(path), links)
        self.assertOpen(holder)

    @unittest.skipUnless(holding.can_mount(), holding.NO_MOUNT)
    def test_received_from_a_mount_namespace_that_has_ended(self) -> None:
        self.assertOpen(self.hold(holding.received(self.root / "x")))

    def test_mapped_and_closed(self) -> None:
        holder = self.hold(holding.MAPPED_ZERO)
        if os.geteuid() == 0:
            self.assertIn(ZERO, processes.open_devices(holder.folder))
        else:  # The kernel shows it to no user, so what the process has open is unknown.
            self.assertRaises(PermissionError, processes.open_devices, holder.folder)

    def test_in_the_table_of_a_thread(self) -> None:
        """The main thread does not have it."""
        self.assertOpen(self.hold(holding.IN_A_THREAD))

    def test_after_the_main_thread_has_ended(self) -> None:
        """Its table and its memory are empty then."""
        holder = self.hold(holding.WITHOUT_MAIN_THREAD, wait=False)
        self.assertFalse(processes.has_ended(processes.status(holder.folder)))
        if os.geteuid() == 0:
            self.assertLessEqual({FULL, ZERO}, processes.open_devices(holder.folder))

    def test_one_that_ends_meanwhile(self) -> None:
        """It keeps nobody from being found."""
        (self.root / "811").mkdir()
        (self.root / "812/fd").mkdir(parents=True)
        (self.root / "812/fd/7").symlink_to("/dev/full")
        holders = list(processes.holders(str(self.root), {FULL}))
        self.assertEqual([(812, "?", [FULL])], holders)

    def test_memory_that_is_locked(self) -> None:
        """A thread that hangs in a driver may have locked it. Pipes stand for that."""
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.host.processes._PATIENCE_S", 0.1))
        self.useFixture(fixtures.Timeout(60, gentle=True))
        process = self.root / "812"
        (process / "fd").mkdir(parents=True)
        for name in ("maps", "cmdline"):
            os.mkfifo(process / name)
        self.assertEqual([(812, "?", None)], list(processes.holders(str(self.root), {FULL})))
        for name in ("maps", "cmdline"):
            with contextlib.suppress(OSError):
                os.close(os.open(process / name, os.O_WRONLY | os.O_NONBLOCK))

    def test_a_file_system_that_does_not_answer(self) -> None:
        """The program that serves it stops answering after the file has been opened. The kernel
        lets root ask nothing of another user's."""
        if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
            self.skipTest("not root, or without FUSE: no file system that hangs can be mounted")
        self.useFixture(fixtures.Timeout(60, gentle=True))
        for user in (0, 65534):
            code = holding.ON_A_SILENT_FILE_SYSTEM.replace("_id=0", f"_id={user}")
            become = f"os.setgid({user}); os.setuid({user})\nif os.fork()"
            code = code.replace("if os.fork()", become)
            self.assertOpen(self.hold(code + "file = open('/dev/full')", "unshare", "-m"))


class HidingTest(base.BaseTestCase):
    """A /proc that hides processes, and a reader without the right to see them."""

    def setUp(self) -> None:
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("not root: /proc cannot be mounted with hidepid")
        self.proc = self.useFixture(fixtures.TempDir()).path

    def holders(self, hidepid: str) -> list[str]:
        """Read as root without CAP_SYS_PTRACE, which a privileged container may lack."""
        code = "file = open('/dev/full'); os.setgid(65534); os.setuid(65534)"
        holder = self.useFixture(Holding(code))
        look = (
            "from nova_gpu.host import processes; "
            f"found = dict((pid, devices) for pid, _, devices in processes.holders({self.proc!r}, "
            f"[{FULL}])); print(1 in found, found.get({holder.pid}, 'missing'))"
        )
        shell = (
            f"mount -t proc -o hidepid={hidepid},gid=65533 proc {self.proc} && "
            'exec setpriv --bounding-set -sys_ptrace,-sys_admin --inh-caps=-all "$@"'
        )
        command = ["unshare", "-m", "sh", "-c", shell, "sh", sys.executable, "-c", look]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    def test_what_cannot_be_read_may_have_it(self) -> None:
        """Linux 6.18 shows such a reader, which has CAP_PERFMON, the process's memory."""
        for hidepid in ("0", "1"):
            self.assertEqual("None", self.holders(hidepid)[1], hidepid)

    def test_what_is_not_listed_may_have_it(self) -> None:
        self.assertEqual(["True", "missing"], self.holders("2"))


HOSTS, CONTAINERS = "pid:[4026531836]", "pid:[4026532555]"


class ProcessesTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.roots = Roots(proc=pathlib.Path(self.useFixture(fixtures.TempDir()).path))

    def link(self, process: str, target: str) -> None:
        link = self.roots.proc / process / "ns/pid"
        link.parent.mkdir(parents=True)
        link.symlink_to(target)

    def test_where_there_are_no_namespaces(self) -> None:
        self.assertTrue(self.roots.shows_all_processes())

    def test_a_containers(self) -> None:
        self.link("self", CONTAINERS)
        self.assertFalse(self.roots.shows_all_processes())

    def test_the_hosts_proc_in_a_container(self) -> None:
        self.link("self", CONTAINERS)
        self.link("1", HOSTS)
        self.assertTrue(self.roots.shows_all_processes())

    def test_what_cannot_be_read_may_be_a_containers(self) -> None:
        (self.roots.proc / "self/ns/pid").mkdir(parents=True)
        self.assertFalse(self.roots.shows_all_processes())
