# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib
import tempfile
import unittest

from nova_gpu.virt.delivery import container_end


class TestProcesses(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.proc = pathlib.Path(folder.name)

    def process(self, pid, name, group):
        (self.proc / str(pid)).mkdir()
        (self.proc / str(pid) / "cgroup").write_text(f"5:devices:{group}\n")
        (self.proc / str(pid) / "stat").write_text(f"{pid} ({name}) D 1 {pid} 0\n")

    def test_of_the_guest_alone(self):
        self.process(11, "init", "/machine/lxc-10-instance-00000001.libvirt-lxc")
        self.process(12, "a (b) c", "/machine.slice/machine-lxc\\x2d10\\x2dinstance.scope/libvirt")
        self.process(13, "neighbours", "/machine/lxc-101-instance-00000002.libvirt-lxc")
        self.process(14, "hosts", "/")
        (self.proc / "15").mkdir()  # It ends while it is read.

        found = sorted(container_end.processes(10, self.proc))

        self.assertEqual(["a (b) c (pid 12, state D)", "init (pid 11, state D)"], found)
