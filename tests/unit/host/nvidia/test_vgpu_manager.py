# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import pathlib
import tempfile
import unittest
from unittest import mock

from nova_gpu.host import child
from nova_gpu.host.nvidia import vgpu_manager

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

    def test_errors_and_nothing_else(self) -> None:
        found = self.journal("cat <<'END'\n" + "\n".join(_ENTRIES) + "\nEND")
        self.assertEqual([_ENTRIES[1].replace("\x1b", "\ufffd"), _ENTRIES[2]], found)

    def test_last_ones_of_others(self) -> None:
        found = self.journal('for i in 1 2 3 4; do echo "notice $i"; done')
        self.assertEqual(["notice 2", "notice 3", "notice 4"], found)

    def test_of_this_unit_and_start(self) -> None:
        found = self.journal('printf "error %s\\n" "$@"')
        self.assertEqual(3, len(found))
        found = self.journal('echo "$@"')
        self.assertIn("--unit=nvidia-vgpu-mgr --since=@1700000000 --lines=50", found[0])

    def test_what_is_too_long_or_late_or_not_there(self) -> None:
        found = self.journal("head -c 100000 /dev/zero | tr '\\0' x")
        self.assertEqual([255], [len(line) for line in found])
        self.assertEqual([], self.journal("echo '-- No entries --'"))
        for script in ("sleep 60", "echo no journal >&2; exit 1"):
            self.assertRaises(child.Failed, self.journal, script)
