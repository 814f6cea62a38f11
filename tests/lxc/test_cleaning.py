# SPDX-License-Identifier: Apache-2.0
"""What a guest leaves on its card is gone before the next one has it."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
from typing import Any

from lab.cloud import guest
from tests.lxc import base, place


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
        said = self.stdlog.logger.output
        self.assertIn(f"(pid {left.pid}), which still had GPU {place.GPUS[0]} open", said)
        self.assertIn(f"clean_command for GPU {place.GPUS[0]}: NOVA_GPU_MODE=lxc", said)
        self.assertIn(f"GPU {place.GPUS[0]} is clean", said)
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
