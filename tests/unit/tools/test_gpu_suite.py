# SPDX-License-Identifier: Apache-2.0
"""The suite of machines with a card, on generated ones: where nvidia-smi and the readers agree all
of it passes, and where they do not the test of that fails.
"""

from __future__ import annotations

import os
import subprocess
import sys

import fixtures
from oslotest import base

from tests.fixtures import hosts, nodes
from tests.fixtures.bases import commands
from tests.gpu import machine
from tools import environments, outcomes


class WithoutLibvirtTest(commands.CommandTestCase):
    def test_metrics(self) -> None:
        """The machine may have no libvirt: the commands say so, and the rest all the same."""
        stand_in = environments.ROOT / "tests/gpu/without_libvirt"
        path = os.pathsep.join([str(stand_in), str(environments.ROOT)])
        self.useFixture(fixtures.EnvironmentVariable("PYTHONPATH", path))
        hosts.Host(self.root, nodes=nodes.Nodes.FILES).add_gpu("0000:04:00.0", "10de", "2330")
        self.configure("lxc")
        done = self.nova_gpu("exporter", "--once")
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("nova_gpu_libvirt_up 0.0", done.stdout)
        self.assertIn('nova_gpu_healthy{address="0000:04:00.0"} 1.0', done.stdout)
        self.assertIn("0000:04:00.0", self.nova_gpu("list").stdout)


class CommandTest(base.BaseTestCase):
    def test_skipped_without_a_card(self) -> None:
        """In a process, as ``tools/test gpu`` runs it"""
        if machine.obstacle() is None:
            self.skipTest("this machine has a real GPU")
        argv = [sys.executable, "-m", "tests.gpu"]
        done = subprocess.run(argv, cwd=environments.ROOT, capture_output=True, text=True)
        self.assertEqual(outcomes.SKIPPED, done.returncode, done.stderr)
        self.assertRegex(done.stdout, "(?m)^SKIP: needs a real GPU")
