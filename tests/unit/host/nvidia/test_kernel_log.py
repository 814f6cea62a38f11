# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import pathlib
import unittest

import fixtures
from oslotest import base

import nova_gpu.privsep.kernel_log
from nova_gpu.core import exception
from nova_gpu.core.model import PciAddress
from nova_gpu.host.nvidia import kernel_log, kmsg
from nova_gpu.host.nvidia.kernel_log import Xid
from tests.fixtures import ailments
from tests.fixtures.verbs import VerbTestCase


class TestRead(VerbTestCase):
    """The real script in a real process"""

    def setUp(self) -> None:
        super().setUp()
        self.log = ailments.KernelLog(self.host)

    def read(self, known: int = 0) -> tuple[int, list[str]]:
        last, lines = nova_gpu.privsep.kernel_log.xids(known)
        return last, lines

    def test_the_lines_about_xids(self) -> None:
        self.log.write("usb 1-1: new device")
        self.log.xid("0000:3b:00.0", 79, "GPU has fallen off the bus.")
        self.log.write("NVRM: GPU at PCI:0000:3b:00: GPU-4a2b")
        last, lines = self.read()
        self.assertEqual(103, last)
        self.assertEqual(["NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."], lines)

    def test_only_what_is_new(self) -> None:
        self.log.xid("0000:3b:00.0", 48)
        last, _ = self.read()
        self.assertEqual((last, []), self.read(last))
        self.log.xid("0000:3b:00.0", 64)
        last, lines = self.read(last)
        self.assertEqual((102, 1), (last, len(lines)))

    def test_a_known_number_that_the_log_has_not_reached(self) -> None:
        """Then it is not this log's: what comes is not to be waited for until the log is so far."""
        self.log.xid("0000:3b:00.0", 48)
        self.assertEqual((101, 1), self._counted(self.read(10**9)))
        self.log.xid("0000:3b:00.0", 79)
        self.assertEqual((102, 1), self._counted(self.read(101)))

    def _counted(self, answer: tuple[int, list[str]]) -> tuple[int, int]:
        last, lines = answer
        return last, len(lines)

    def test_what_a_process_wrote_is_not_the_kernels(self) -> None:
        self.log.write("NVRM: Xid (PCI:0000:3b:00): 79, made up", facility=1)
        self.assertEqual((101, []), self.read())

    def test_lines_that_belong_to_a_record(self) -> None:
        self.log.write("nvidia 0000:3b:00.0: enabling\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0")
        self.log.xid("0000:3b:00.0", 48)
        self.assertEqual(1, len(self.read()[1]))

    def test_a_record_larger_than_a_read(self) -> None:
        self.log.xid("0000:3b:00.0", 48, "x" * 20000)
        self.log.xid("0000:3b:00.0", 64)
        self.assertEqual(2, len(self.read()[1]))

    def test_no_log(self) -> None:
        (self.host.roots.dev / "kmsg").unlink()
        error = self.assertRaises(exception.KernelLogUnreadable, self.read)
        self.assertIn("No such file", str(error))
        self.assertIn("Xids", str(error))

    def test_the_machines_own(self) -> None:
        try:
            os.close(os.open("/dev/kmsg", os.O_RDONLY))
        except OSError as error:
            self.skipTest(f"this machine's kernel log cannot be read: {error}")
        last, _ = kmsg.new("/dev/kmsg", 0)
        self.assertIsNotNone(last)


class TestParse(unittest.TestCase):
    def parse(self, *lines: str) -> list[Xid]:
        return kernel_log.parse(lines)

    def test_forms(self) -> None:
        card = PciAddress.parse("0000:3b:00.0")
        for line, xid in (
            (
                "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen "
                "off the bus.",
                Xid(card, 79, "GPU has fallen off the bus"),
            ),
            (
                "NVRM: Xid (PCI:0000:3b:00): 13, pid=4242, name=secret project, Graphics SM Warp",
                Xid(card, 13, "Graphics SM Warp"),
            ),
            # Both formats of MIG instances as kernel_rc.c of open-gpu-kernel-modules prints them
            (
                "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7, name=python, Contained: L2",
                Xid(card, 94, "Contained: L2", 5),
            ),
            (
                "NVRM: Xid (PCI:0000:3b:00 GPU-I:13 GPU-CI:02): 31, pid=7, name=python, MMU Fault",
                Xid(card, 31, "MMU Fault", 13, 2),
            ),
            ("NVRM: Xid (0000:3b:00): 14, Channel 00000001", Xid(card, 14, "Channel 00000001")),
            ("NVRM: Xid (PCI:0000:3B:00.0): 48", Xid(card, 48, "")),
            # The text may change from one driver to the next; its code is what counts.
            ("NVRM: Xid (PCI:0000:3b:00): 48: other words", Xid(card, 48, "")),
            (
                "NVRM: Xid (PCI:10000:01:00): 154, GPU recovery action changed from 0x0 (None) to "
                "0x1 (GPU Reset Required)",
                Xid(
                    PciAddress.parse("10000:01:00.0"),
                    154,
                    "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
                ),
            ),
        ):
            with self.subTest(line):
                self.assertEqual([xid], self.parse(line))

    def test_what_is_none(self) -> None:
        self.assertEqual(
            [],
            self.parse(
                "NVRM: Xid (PCI:0000:3b:00): many",
                "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal",
                "NVRM: Xid (GPU 0): 79, what",
                "",
            ),
        )

    def test_a_long_text_is_cut(self) -> None:
        (xid,) = self.parse("NVRM: Xid (PCI:0000:3b:00): 48, " + "x" * 5000)
        self.assertEqual(120, len(xid.text))


class TestPosition(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.path = pathlib.Path(self.useFixture(fixtures.TempDir()).path, "position")

    def test_there_and_back(self) -> None:
        self.assertIsNone(kernel_log.load(self.path))
        kernel_log.save(self.path, kernel_log.Position("a-boot", 7))
        self.assertEqual(kernel_log.Position("a-boot", 7), kernel_log.load(self.path))
        self.assertEqual([self.path], list(self.path.parent.iterdir()))

    def test_garbage_is_none(self) -> None:
        for text in ("", "{}", "[]", '{"boot_id": "x", "sequence": "many"}', "null"):
            self.path.write_text(text)
            self.assertIsNone(kernel_log.load(self.path), text)
