# SPDX-License-Identifier: Apache-2.0
"""The verbs of cleaning, through a daemon that has few capabilities itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import tests.unit.privsep.test_daemon
from nova_gpu.host import guest_processes
from nova_gpu.host.roots import Roots

CARD, AUDIO = tests.unit.privsep.test_daemon.CARD, tests.unit.privsep.test_daemon.AUDIO
# Of no guest that may run on this machine
UID, COUNT = 1_999_000_000, 1000


class CleaningTest(tests.unit.privsep.test_daemon.DaemonTestCase):
    call = tests.unit.privsep.test_daemon.UnprivilegedTest.call
    OPTIONS = (
        "clean_timeout = 60",
        "clean_command = /bin/sh",
        "clean_command = -c",
        "clean_command = echo $$NOVA_GPU_ADDRESS $$NOVA_GPU_MODE; id -u; exit 4",
        "[libvirt]",
        f"uid_maps = 0:{UID}:{COUNT}",
    )

    def test_reset(self) -> None:
        self.assertIsNone(self.call("cleaning.reset", CARD))
        for function in (CARD, AUDIO):
            self.assertEqual("1", (self.host.path(function) / "reset").read_text())
        (self.host.path(CARD) / "config").write_bytes(b"\xff" * 64)
        name, args, _ = self.call("cleaning.reset", CARD)
        self.assertEqual(("NotClean", CARD), (name, args[0]))
        self.assertIn("does not answer", args[1])

    def test_command(self) -> None:
        self.assertEqual([4, f"{CARD} pci\n0\n"], self.call("cleaning.run_command", CARD))

    def test_addresses(self) -> None:
        for verb in ("reset", "end_processes", "run_command"):
            name, _, _ = self.call(f"cleaning.{verb}", "../81:00.0")
            self.assertEqual("InvalidPciAddress", name)
            name, args, _ = self.call(f"cleaning.{verb}", "0000:82:00.0")
            self.assertEqual(("NotClean", "0000:82:00.0"), (name, args[0]))

    def test_processes_of_a_guest(self) -> None:
        """They are ended; the host's own, of another user, is left alone."""
        device = self.host.path(AUDIO) / "sound/card0/controlC0"
        device.mkdir(parents=True)
        full = os.stat("/dev/full").st_rdev
        (device / "dev").write_text(f"{os.major(full)}:{os.minor(full)}\n")
        guests = next(processes := self._with_it_open(UID + 7))
        own = next(processes_of_host := self._with_it_open(1))
        self.assertTrue(guest_processes.may_be_left(Roots(), [(UID, COUNT)]))
        (ended,) = self.call("cleaning.end_processes", CARD, proc="/proc")
        self.assertIn(f"(pid {guests.pid})", ended)
        self.assertEqual(-9, guests.wait(30))
        self.assertIsNone(own.poll())
        self.assertEqual([], self.call("cleaning.end_processes", CARD))
        self.assertFalse(guest_processes.may_be_left(Roots(), [(UID, COUNT)]))
        processes.close()
        processes_of_host.close()

    def _with_it_open(self, uid: int) -> Iterator[subprocess.Popen[str]]:
        code = "f = open('/dev/full'); print(flush=True); input()"
        with subprocess.Popen(
            ["/usr/bin/env", "python3", "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            user=uid,
            cwd="/",
            text=True,
        ) as process:
            assert process.stdout
            process.stdout.readline()
            try:
                yield process
            finally:
                process.kill()
