# SPDX-License-Identifier: Apache-2.0
"""The verbs through a real privileged daemon, with the capabilities that Nova's has."""

from __future__ import annotations

import os
import stat
import subprocess

from nova_gpu.host.pci import privileged_cards
from tests.fixtures import pci
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

    def test_the_kernel_refuses(self) -> None:
        self.kernel.refused.add(f"{AUDIO} vfio-pci")
        name, args, _ = self.call("vfio.give_to_guests", CARD)
        self.assertEqual(("BindingFailed", CARD), (name, args[0]))
        self.assertEqual(["nvidia", "snd_hda_intel"], self.drivers())

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
            found = self.call("vfio.in_use", [CARD], proc=str(proc))
            self.assertEqual([process.pid], [pid for pid, _, _ in found[CARD]])
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
        last, lines = self.call("kernel_log.xids", 0, dev="/dev")
        self.assertGreater(last, 0)
        self.assertEqual([last, []], self.call("kernel_log.xids", last))
        self.assertIsInstance(lines, list)

    def test_no_kernel_log(self) -> None:
        name, args, text = self.call("kernel_log.xids", 0)
        self.assertEqual("KernelLogUnreadable", name)
        self.assertEqual(str(self.host.roots.dev / "kmsg"), args[0])
        self.assertIn("Xids", text)

    def test_serial_numbers(self) -> None:
        """The kernel shows nobody but root more than the first 64 bytes."""
        pci.write_serial_number(self.host.path(CARD), 1)
        (self.host.path(CARD) / "config").chmod(0o600)
        said = self.call("identity.read", [CARD, AUDIO])
        self.assertEqual({CARD: {"pcie": "00-00-00-00-00-00-00-01"}}, said)
        self.assertEqual("InvalidPciAddress", self.call("identity.read", ["../81:00.0"])[0])

    def test_acs_of_ports(self) -> None:
        self.host.add_bridge("0000:00:01.0")
        (self.host.path("0000:00:01.0") / "config").chmod(0o600)
        said = self.call("acs.read", ["0000:00:01.0", "0000:00:02.0"])
        self.assertEqual({"0000:00:01.0": None}, said)
        self.assertEqual("InvalidPciAddress", self.call("acs.read", ["../81:00.0"])[0])

    def test_nodes(self) -> None:
        """The daemon's few capabilities are enough to note what a node's mode was."""
        node = self.host.roots.dev / "dri/card1"
        node.parent.mkdir(parents=True)
        (self.host.path(CARD) / "drm/card1").mkdir(parents=True)
        os.mknod(node, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        self.host.roots.dev.chmod(0o755)
        given = ["/dev/dri/card1"]
        self.assertEqual(given, self.call("nodes.open_to_guests", CARD, given))
        self.assertEqual(0o606, stat.S_IMODE(node.stat().st_mode))
        self.assertEqual(given, self.call("nodes.opened_to_guests"))
        self.assertEqual(given, self.call("nodes.close_to_guests", given))
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
