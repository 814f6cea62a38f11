# SPDX-License-Identifier: Apache-2.0
"""What a guest leaves, on its card or running, is gone before the next one has the card."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from lab.cloud import guest
from nova_gpu.virt.delivery import container_domain
from tests.lxc import base, place

_FREEZER = pathlib.Path("/sys/fs/cgroup/freezer")
# libvirt gives up after 3 s, and again, twice, when the controller is gone.
_LONGER_THAN_LIBVIRT_S = 12.0


class CleaningTest(base.LXCTestCase):
    def set_host_flags(self) -> None:
        super().set_host_flags()
        self.flags(clean_command=["/usr/bin/env"], group="gpu")

    def test_process_that_outlives_its_guest(self) -> None:
        server = self.boot_with(1)
        self.assertGPUs(server, {0})
        left = self._outside_of(server)

        self.delete(server)

        self.assertEqual(-signal.SIGKILL, left.wait(200))
        output = self.stdlog.logger.output
        self.assertIn(f"(pid {left.pid}), which still had GPU {place.GPUS[0]} open", output)
        self.assertIn(f"clean_command for GPU {place.GPUS[0]}: NOVA_GPU_MODE=lxc", output)
        self.assertIn(f"GPU {place.GPUS[0]} is clean", output)
        self.assertGPUs(self.boot_with(8), range(8))

    def _outside_of(self, server: dict[str, Any]) -> subprocess.Popen[bytes]:
        """One of the guest's users that is in its process namespace no more than who came in with
        nsenter, and has its card's node open: as far as that goes with a node without a driver."""
        pid = guest.init_pid(self._lv, self.domain(server))
        fd = os.open(place.node(0).path, os.O_PATH)
        enter = ["nsenter", f"--target={pid}", "--user", "--setuid=0", "--setgid=0"]
        try:
            left = subprocess.Popen([*enter, "--", "sleep", "600"], pass_fds=[fd])
        finally:
            os.close(fd)
        self.addCleanup(left.kill)
        # By then nsenter has gone in: before, it would be nobody's of the guest.
        command = pathlib.Path(f"/proc/{left.pid}/comm")
        self.wait_for("it is inside", lambda: command.read_text() == "sleep\n")
        # The host's /proc is a generated one, for the driver's files.
        (self._host.roots.proc / str(left.pid)).symlink_to(f"/proc/{left.pid}")
        return left


class SlowEndTest(base.LXCTestCase):
    """Processes that need longer to end than libvirt gives them, as a GPU's driver may make them.

    A process in a frozen group of cgroup v1 does not end of a SIGKILL until it is thawed: the one
    thing that a test can make, and end, that is like a driver's uninterruptible wait.
    """

    def setUp(self) -> None:
        if not (_FREEZER / "tasks").exists():
            self.skipTest("needs the freezer of cgroup v1: in a frozen group of v2 SIGKILL works")
        super().setUp()
        self._server = self.boot_with(2)

    def test_deleted_when_they_have_ended(self) -> None:
        with self._frozen() as thaw:
            threading.Timer(_LONGER_THAN_LIBVIRT_S, thaw).start()
            started = time.monotonic()
            self.delete(self._server)

        self.assertGreaterEqual(time.monotonic() - started, _LONGER_THAN_LIBVIRT_S)
        self.assertEqual([], self._lv.domains())
        self.assertEqual(0, self.usage())
        self.assertGPUs(self.boot_with(8), range(8))

    def test_refused_while_they_do_not(self) -> None:
        with self._frozen(), mock.patch.object(container_domain, "_PATIENCE_S", 4.0):
            self.api.delete_server(self._server["id"])
            self.wait_until(self._server, "ERROR")
            self.assertEqual(2, self.usage(), "GPUs of a guest that is still there")

        fault = self.api.get_server(self._server["id"])["fault"]["message"]
        self.assertIn("these processes of its guest still run: init (pid ", fault)
        self.delete(self._server)
        self.assertEqual(0, self.usage())

    @contextlib.contextmanager
    def _frozen(self) -> Iterator[Callable[[], None]]:
        """The guest's process 1, in a group of its own below the guest's; yields what thaws it."""
        init = guest.init_pid(self._lv, self.domain(self._server))
        lines = pathlib.Path(f"/proc/{init}/cgroup").read_text().splitlines()
        (path,) = (line.split(":", 2)[2] for line in lines if ":freezer:" in line)
        group = _FREEZER / path.lstrip("/") / "slow"
        group.mkdir()
        (group / "cgroup.procs").write_text(str(init))
        state = group / "freezer.state"
        state.write_text("FROZEN")

        def thaw() -> None:
            with contextlib.suppress(FileNotFoundError):
                state.write_text("THAWED")

        self.addCleanup(thaw)
        try:
            yield thaw
        finally:
            thaw()
