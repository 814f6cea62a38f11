# SPDX-License-Identifier: Apache-2.0
"""Device nodes that come to lead to another card while their guests run are taken from them."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
from typing import Any

from tests.lxc import base, place
from tools.novalab import cgroups, guest

FIRST, SECOND, THIRD = range(3)
# By the guest's root: libvirt's node lies below the mount of the host's.
_HIDE = 'umount "$1"; mv "$1" /dev/hidden; : >"$1"; mount --bind /dev/null "$1"'


class WithdrawnTest(base.LXCTestCase):
    def assertCannotOpen(self, server: dict[str, Any], *gpus: int) -> None:
        """The nodes are gone, nobody can make them, and the device cgroup refuses their numbers."""
        domain, others = self.domain(server), [place.node(gpu) for gpu in gpus]
        listed = self.run_inside(server, "/bin/ls", "/dev").stdout.split()
        mounts = self.run_inside(server, "/bin/cat", "/proc/mounts").stdout
        for node in others:
            self.assertNotIn(node.name, listed)
            self.assertNotIn(node.path, mounts)
        made = guest.made_nodes(self._lv, domain, others)
        self.assertEqual([], [each for each in made if not each.refused])
        for number in guest.open_from_cgroup(self._lv, domain, others):
            self.assertEqual(base.REFUSED, os.strerror(number))

    def made_by_libvirt(self, server: dict[str, Any]) -> set[str]:
        xml = self._lv.virsh("dumpxml", self.domain(server))
        return {
            node.name
            for node in map(place.node, range(len(place.GPUS)))
            if f"<char>{node.path}</char>" in xml
        }

    def holder(self, server: dict[str, Any], gpu: int) -> subprocess.Popen[bytes]:
        """A process in the guest's control groups that has the node open, as far as that goes with
        one without a driver"""
        fd = os.open(place.node(gpu).path, os.O_PATH)
        try:
            holder = subprocess.Popen(["sleep", "600"], pass_fds=[fd])
        finally:
            os.close(fd)
        self.addCleanup(holder.kill)
        init = guest.init_pid(self._lv, self.domain(server))
        mounts = pathlib.Path(f"/proc/{self._lv.pid}/mountinfo").read_text()
        groups = pathlib.Path(f"/proc/{init}/cgroup").read_text()
        for file in cgroups.procs_files(mounts, groups):
            subprocess.run(self._lv.enter(["sh", "-c", f"echo {holder.pid} >{file}"]), check=True)
        # The host's /proc is a generated one, for the driver's files.
        (self._host.roots.proc / str(holder.pid)).symlink_to(f"/proc/{holder.pid}")
        return holder

    def test_two_that_have_changed_cards(self) -> None:
        first, second = self.boot_with(1), self.boot_with(1)
        self.assertGPUs(first, {FIRST})
        self.assertGPUs(second, {SECOND})
        # Its root has libvirt's node elsewhere, and something else in its place.
        self.run_inside(second, "/bin/sh", "-ec", _HIDE, "hide", place.node(SECOND).path)
        holder = self.holder(first, FIRST)
        place.exchange(self._host, FIRST, SECOND)
        self._run_periodics()

        for server in (first, second):
            self.assertEqual(set(), self.made_by_libvirt(server))
            self.assertCannotOpen(server, FIRST, SECOND)
            said = f"The guest {server['id']} reached another card than its own, GPU "
            self.assertIn(said, self.stdlog.logger.output)
            self.assertEqual("ok", self.run_inside(server, "/bin/echo", "-n", "ok").stdout)
        self.assertEqual(-signal.SIGKILL, holder.wait(60))
        said = f"(pid {holder.pid}) of the guest {first['id']} had a GPU open"
        self.assertIn(said, self.stdlog.logger.output)
        hidden = self.run_inside(second, "/bin/sh", "-c", ": </dev/hidden", uid=0)
        self.assertIn(base.REFUSED, hidden.stderr)
        self.assertGPUs(self.boot_with(1), {THIRD})

        for server in (first, second):
            self._reboot_server(server, hard=True)
        self.assertGPUs(first, {SECOND})
        self.assertGPUs(second, {FIRST})
        self._run_periodics()
        self.assertEqual(0, self.reserved())
