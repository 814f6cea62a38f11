# SPDX-License-Identifier: Apache-2.0
"""The verbs through a real privileged daemon, with the capabilities that Nova's has."""

from __future__ import annotations

import dataclasses
import os
import stat
import subprocess

from nova_gpu.host.container import guest_processes
from nova_gpu.host.pci import privileged_cards
from nova_gpu.host.roots import Roots
from tests.fixtures import nvidia, pci
from tests.fixtures.bases.daemon import AUDIO, CARD, DaemonTestCase


class UnprivilegedTest(DaemonTestCase):
    """nova-compute is nobody, and may do nothing of that itself."""

    def test_there_and_back(self) -> None:
        self.assertIsNone(self.call("vfio.give_to_guests", CARD))
        self.assertEqual(["vfio-pci", "vfio-pci"], self.drivers())
        (record,) = self.records.iterdir()
        self.assertEqual((0, 0o600), (record.stat().st_uid, record.stat().st_mode & 0o777))
        self.assertIsNone(self.call("vfio.give_to_host", CARD))
        self.assertEqual(["nvidia", "snd_hda_intel"], self.drivers())

    def test_errors_are_the_same_on_this_side(self) -> None:
        name, args, text = self.call("vfio.give_to_guests", "0000:82:00.0")
        self.assertEqual("BindingFailed", name)
        self.assertEqual(
            ["0000:82:00.0", privileged_cards.REASON, privileged_cards.REMEDY, None], args
        )
        self.assertEqual(
            f"GPU 0000:82:00.0 was not bound: {privileged_cards.REASON}; {privileged_cards.REMEDY}",
            text,
        )
        for verb in ("vfio.give_to_guests", "vfio.give_to_host"):
            name, args, text = self.call(verb, "../81:00.0")
            self.assertEqual(("InvalidPciAddress", ["../81:00.0"]), (name, args))
            self.assertEqual(1, text.count("is not a PCI address"))
        name, _, text = self.call("nodes.open_to_guests", "../81:00.0", [])
        self.assertEqual("InvalidValue", name)
        self.assertEqual(1, text.count("is not the slot of a vGPU"))

    def test_processes_of_other_users_are_seen(self) -> None:
        """The daemon itself may not look into them: its capabilities are few."""
        self.add_sound()
        with subprocess.Popen(
            ["/bin/sh", "-c", "exec 7</dev/full; echo; read line"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            user=1,
            cwd="/",
        ) as process:
            assert process.stdout
            process.stdout.readline()
            # The real processes, without the PID namespace of the machine that the test runs on
            proc = self.root / "real-proc"
            proc.mkdir()
            for name in ("sys", str(process.pid)):
                (proc / name).symlink_to(f"/proc/{name}")
            holders = self.call("vfio.in_use", [CARD], proc=str(proc))
            self.assertEqual([process.pid], [pid for pid, _, _ in holders[CARD]])
            name, args, _ = self.call("vfio.give_to_guests", CARD)
            self.assertEqual("CardInUse", name)
            self.assertIn(f"(pid {process.pid})", args[3])
            process.communicate(b"\n")
        self.assertEqual(["nvidia", "snd_hda_intel"], self.drivers())

    def test_the_machines_kernel_log(self) -> None:
        """With kernel.dmesg_restrict nobody may read it, nor the daemon itself."""
        try:
            os.close(os.open("/dev/kmsg", os.O_RDONLY))
        except OSError as error:
            self.skipTest(f"this machine's kernel log cannot be read: {error}")
        last, lines = self.call("readings.xids", 0, dev="/dev")
        self.assertGreater(last, 0)
        self.assertIsInstance(lines, list)
        self.assertEqual([last, []], self.call("readings.xids", last))

    def test_no_kernel_log(self) -> None:
        name, args, text = self.call("readings.xids", 0)
        self.assertEqual(
            ("KernelLogUnreadable", str(self.host.roots.dev / "kmsg")), (name, args[0])
        )
        self.assertIn("Xids", text)

    def test_serial_numbers(self) -> None:
        """The kernel shows nobody but root more than the first 64 bytes."""
        pci.write_serial_number(self.host.path(CARD), 1)
        (self.host.path(CARD) / "config").chmod(0o600)
        numbers = self.call("readings.serial_numbers", [CARD, AUDIO])
        self.assertEqual({CARD: {"pcie": "00-00-00-00-00-00-00-01"}}, numbers)
        self.assertEqual(
            "InvalidPciAddress", self.call("readings.serial_numbers", ["../81:00.0"])[0]
        )

    def test_acs_of_ports(self) -> None:
        self.host.add_bridge("0000:00:01.0")
        (self.host.path("0000:00:01.0") / "config").chmod(0o600)
        faults = self.call("readings.port_faults", ["0000:00:01.0", "0000:00:02.0"])
        self.assertEqual({"0000:00:01.0": None}, faults)
        self.assertEqual("InvalidPciAddress", self.call("readings.port_faults", ["../81:00.0"])[0])

    def test_nodes(self) -> None:
        """The daemon's few capabilities are enough to note what a node's mode was."""
        node = self.host.roots.dev / "dri/card1"
        node.parent.mkdir(parents=True)
        (self.host.path(CARD) / "drm/card1").mkdir(parents=True)
        os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        self.host.roots.dev.chmod(0o755)
        paths = ["/dev/dri/card1"]
        self.assertEqual(paths, self.call("nodes.open_to_guests", CARD, paths))
        self.assertEqual(0o606, stat.S_IMODE(node.stat().st_mode))
        self.assertEqual(paths, self.call("nodes.opened_to_guests"))
        self.assertEqual(paths, self.call("nodes.close_to_guests", paths))
        self.assertEqual(0o600, stat.S_IMODE(node.stat().st_mode))


class HelperTest(DaemonTestCase):
    """Started as a process of its own, the daemon reads the options of [gpu] from the files."""

    def test_there_and_back(self) -> None:
        self.start("ROOTWRAP")
        for verb, drivers in (
            ("vfio.give_to_guests", ["vfio-pci", "vfio-pci"]),
            ("vfio.give_to_host", ["nvidia", "snd_hda_intel"]),
        ):
            self.assertEqual({"uid": 0, "returned": None}, self.answer(verb, CARD))
            self.assertEqual(drivers, self.drivers())


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
        for device, mode in ((CARD, "pci"), (f"{CARD}/1g.18gb/900", "vgpu")):
            output = self.call("cleaning.run_command", device)
            self.assertEqual([4, f"{CARD} {mode}\n0\n"], output)

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
        guests = self._with_it_open(UID + 7, "/dev/full")
        own = self._with_it_open(1, "/dev/full")
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
        mine = self._with_it_open(UID + 7, "/dev/full", "/dev/zero")
        other = self._with_it_open(UID + 8, "/dev/random", "/dev/zero")
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

    def _with_it_open(self, uid: int, *devices: str) -> subprocess.Popen[str]:
        code = f"f = [open(each) for each in {devices!r}]; print(flush=True); input()"
        argv, pipe = ["/usr/bin/env", "python3", "-c", code], subprocess.PIPE
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, user=uid, cwd="/", text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        assert process.stdout
        process.stdout.readline()
        return process
