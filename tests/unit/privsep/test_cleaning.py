# SPDX-License-Identifier: Apache-2.0
"""The verbs of cleaning, through a daemon that has few capabilities itself."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Iterator

from nova_gpu.host.container import guest_processes
from nova_gpu.host.roots import Roots
from tests.fixtures import nvidia
from tests.fixtures.bases.daemon import AUDIO, CARD, DaemonTestCase

# Of no guest that may run on this machine
UID, COUNT = 1_999_000_000, 1000


class CleaningTest(DaemonTestCase):
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
        refused = {"reset": "InvalidPciAddress"}
        for verb in ("reset", "end_processes", "run_command"):
            name, _, _ = self.call(f"cleaning.{verb}", "../81:00.0")
            self.assertEqual(refused.get(verb, "InvalidValue"), name)
            name, args, _ = self.call(f"cleaning.{verb}", "0000:82:00.0")
            self.assertEqual(("NotClean", "0000:82:00.0"), (name, args[0]))

    def test_processes_of_a_guest(self) -> None:
        """They are ended; the host's own, of another user, is left alone."""
        self.add_sound()
        guests = next(processes := self._with_it_open(UID + 7, "/dev/full"))
        own = next(processes_of_host := self._with_it_open(1, "/dev/full"))
        # Processes are the machine's, which may be a container with others outside.
        proc = self.root / "proc-of-this-machine"
        proc.mkdir(mode=0o755)
        for pid in (1, guests.pid, own.pid):
            (proc / str(pid)).mkdir(mode=0o755)
            for name in ("status", "stat", "cgroup", "cmdline", "fd"):
                (proc / str(pid) / name).symlink_to(f"/proc/{pid}/{name}")
        roots = dataclasses.replace(Roots(), proc=proc)
        self.assertTrue(guest_processes.may_be_left(roots, [(UID, COUNT)]))
        (ended,) = self.call("cleaning.end_processes", CARD, proc=str(proc))
        self.assertIn(f"(pid {guests.pid})", ended)
        self.assertEqual(-9, guests.wait(200))
        self.assertIsNone(own.poll())
        self.assertEqual([], self.call("cleaning.end_processes", CARD))
        self.assertFalse(guest_processes.may_be_left(roots, [(UID, COUNT)]))
        (proc / "self/ns").mkdir(parents=True)
        (proc / "self/ns/pid").symlink_to("pid:[4026532555]")
        name, args, _ = self.call("cleaning.end_processes", CARD)
        self.assertEqual("NotClean", name)
        self.assertIn("in a PID namespace of its own", args[1])
        processes.close()
        processes_of_host.close()

    def test_processes_of_one_mig_instance(self) -> None:
        """A neighbour has the card's node open, and those of its own instance."""
        self.host.add_gpu("0000:91:00.0", "10de", "2335", minor=0, mig=[(9, 0), (10, 0)])
        slots = {9: "0000:91:00.0/1g.18gb/900", 10: "0000:91:00.0/1g.18gb/1000"}
        stand_ins = {"nvidia0": "/dev/zero"}
        for gpu_instance, device in ((9, "/dev/full"), (10, "/dev/random")):
            cap = nvidia.cap_minor(0, gpu_instance, 0)
            stand_ins[f"nvidia-caps/nvidia-cap{cap}"] = device
        dev, proc = self.host.roots.dev, self.root / "proc-of-this-machine"
        for name, device in stand_ins.items():
            (dev / name).parent.mkdir(exist_ok=True, mode=0o755)
            (dev / name).unlink(missing_ok=True)
            (dev / name).symlink_to(device)
        # Processes are the machine's, what the driver shows is the generated host's.
        proc.mkdir(mode=0o755)
        mine = next(processes := self._with_it_open(UID + 7, "/dev/full", "/dev/zero"))
        other = next(of_neighbour := self._with_it_open(UID + 8, "/dev/random", "/dev/zero"))
        (proc / str(mine.pid)).symlink_to(f"/proc/{mine.pid}")
        # The neighbour runs in a container.
        (proc / str(other.pid)).mkdir(mode=0o755)
        for name in ("status", "stat", "cmdline", "fd"):
            (proc / str(other.pid) / name).symlink_to(f"/proc/{other.pid}/{name}")
        group = proc / str(other.pid) / "cgroup"
        group.write_text("0::/machine.slice/machine-lxc\\x2d700\\x2dneighbour.scope\n")
        (proc / "700").mkdir(mode=0o755)
        (proc / "700/status").write_text("Name:\tlibvirt_lxc\nUid:\t0\t0\t0\t0\n")
        (proc / "driver").symlink_to(self.host.roots.proc / "driver")
        (ended,) = self.call("cleaning.end_processes", slots[9], proc=str(proc))
        self.assertIn(f"(pid {mine.pid})", ended)
        self.assertEqual(-9, mine.wait(200))
        (proc / str(mine.pid)).unlink()
        self.assertIsNone(other.poll())
        group.unlink()
        (ended,) = self.call("cleaning.end_processes", slots[10])
        self.assertIn(f"(pid {other.pid})", ended)
        self.assertEqual([], self.call("cleaning.end_processes", "0000:91:00.0/1g.18gb/1100"))
        processes.close()
        of_neighbour.close()

    def test_command_for_a_mig_instance(self) -> None:
        said = self.call("cleaning.run_command", f"{CARD}/1g.18gb/900")
        self.assertEqual([4, f"{CARD} vgpu\n0\n"], said)

    def _with_it_open(self, uid: int, *devices: str) -> Iterator[subprocess.Popen[str]]:
        code = f"f = [open(each) for each in {devices!r}]; print(flush=True); input()"
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
