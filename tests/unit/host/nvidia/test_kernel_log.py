# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import pathlib
import tempfile
import unittest
from unittest import mock

import nova_gpu.privsep.readings
from nova_gpu.core.model import PciAddress
from nova_gpu.host import child_process
from nova_gpu.host.nvidia import kernel_log, vgpu_manager
from nova_gpu.host.nvidia.kernel_log import Xid
from tests.fixtures import ailments
from tests.fixtures.verbs import VerbTestCase


class TestRead(VerbTestCase):
    """The real script in a real process"""

    def setUp(self) -> None:
        super().setUp()
        self.log = ailments.KernelLog(self.host)

    def read(self, known: int = 0) -> tuple[int, list[str]]:
        last, lines = nova_gpu.privsep.readings.xids(known)
        return last, lines

    def test_the_lines_about_xids(self) -> None:
        self.log.write("usb 1-1: new device")
        self.log.xid("0000:3b:00.0", 79, "GPU has fallen off the bus.")
        self.log.write("NVRM: GPU at PCI:0000:3b:00: GPU-4a2b")
        last, lines = self.read()
        self.assertEqual(103, last)
        self.assertEqual(["NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."], lines)

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
        self.log.xid("0000:3b:00.0", 48, "x" * 20000)  # more than one read has
        self.log.xid("0000:3b:00.0", 64)
        self.assertEqual((103, 2), self._counted(self.read()))


class TestParse(unittest.TestCase):
    """What real ones look like is in tests/recorded/xids.yaml."""

    def test_forms(self) -> None:
        card = PciAddress.parse("0000:3b:00.0")
        for line, xid in (
            # Both formats of MIG instances as kernel_rc.c of open-gpu-kernel-modules prints them
            (
                "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 94, pid=7, name=python, Contained: L2",
                Xid(card, 94, "Contained: L2", 5),
            ),
            (
                "NVRM: Xid (PCI:0000:3b:00 GPU-I:13 GPU-CI:02): 31, pid=7, name=python, MMU Fault",
                Xid(card, 31, "MMU Fault", 13, 2),
            ),
            ("NVRM: Xid (PCI:0000:3B:00.0): 48", Xid(card, 48, "")),
            # The text may change from one driver to the next; its code is what counts.
            ("NVRM: Xid (PCI:0000:3b:00): 48: other words", Xid(card, 48, "")),
            (
                "NVRM: Xid (PCI:10000:01:00): 154, name=secret project, GPU recovery action",
                Xid(PciAddress.parse("10000:01:00.0"), 154, "GPU recovery action"),
            ),
        ):
            with self.subTest(line):
                self.assertEqual([xid], kernel_log.parse([line]))


# As in mbilker/vgpu_unlock-rs#49
_ENTRIES = (
    "notice: vmiop_env_log: vmiop-env: guest_max_gpfn:0x0",
    "error: vmiop_log: (0x0): Failed to allocate \x1b[2Jframe buffer",
    "error: vmiop_log: (0x0): init_device_instance failed for inst 0 with error 1",
    "notice: vmiop_log: display_init failed",
)


class ErrorsTest(unittest.TestCase):
    def journal(self, script: str) -> list[str]:
        """What is found with a journalctl that does this"""
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (folder / "journalctl").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "journalctl").chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        with mock.patch.dict(os.environ, {"PATH": path}):
            return vgpu_manager.errors(1700000000.9, 2.0)

    def test_errors_of_this_unit_and_start_or_last_ones_of_others(self) -> None:
        lines = self.journal("cat <<'END'\n" + "\n".join(_ENTRIES) + "\nEND")
        self.assertEqual([_ENTRIES[1].replace("\x1b", "\ufffd"), _ENTRIES[2]], lines)
        lines = self.journal('for i in 1 2 3 4; do echo "notice $i"; done')
        self.assertEqual(["notice 2", "notice 3", "notice 4"], lines)
        self.assertEqual(3, len(self.journal('printf "error %s\\n" "$@"')))
        lines = self.journal('echo "$@"')
        self.assertIn("--unit=nvidia-vgpu-mgr --since=@1700000000 --lines=50", lines[0])

    def test_what_is_too_long_or_late_or_not_there(self) -> None:
        lines = self.journal("head -c 100000 /dev/zero | tr '\\0' x")
        self.assertEqual([255], [len(line) for line in lines])
        self.assertEqual([], self.journal("echo '-- No entries --'"))
        for script in ("sleep 60", "echo no journal >&2; exit 1"):
            self.assertRaises(child_process.Failed, self.journal, script)
