# SPDX-License-Identifier: Apache-2.0
"""Guests with cards of AMD and of Intel, whose nodes are not everybody's."""

from __future__ import annotations

import os
import pathlib
import stat
import unittest

from nova.tests import fixtures as nova_fixtures

from tests.fixtures import hosts, nodes
from tests.functional import alone, base

AMD_NODES = {"/dev/dri/card1", "/dev/dri/renderD129", "/dev/kfd"}


needs_root = unittest.skipIf(os.getuid(), "only root can make device nodes")


class _NodesTestBase(alone.Alone, base.GPUServersTestBase):
    NODES = nodes.Nodes.FILES if os.getuid() else nodes.Nodes.DEVICES

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(nova_fixtures.PrivsepFixture())


class VendorsTest(_NodesTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host(machine="amd-intel")

    @needs_root
    def test_they_are_closed_when_the_last_guest_has_gone(self) -> None:
        """What two guests share with the second of them, and none that the host has open itself."""
        dev = self.hosts["host1"].roots.dev
        (dev / "dri/card3").chmod(0o604)
        before = self._modes()
        flavor = self.flavor(gpus="= 1", gpu_arch="s== cdna3")
        first, second = self.boot(flavor), self.boot(flavor)
        intel = self.boot(self.flavor(gpus="= 1", gpu_arch="s== xe-hpg"))
        self._reboot_server(first, hard=True)
        self.assertEqual(0o606, self._modes()["/dev/dri/card3"])
        has = set(self.domain(second).xpath("devices/hostdev/source/char/text()"))

        self._delete_server(first)
        modes = self._modes()
        self.assertEqual(dict.fromkeys(has, 0o666), {node: modes[node] for node in has})
        self.assertEqual(0o660, modes[min(AMD_NODES - has)])
        self._delete_server(intel)
        self.assertEqual(0o604, self._modes()["/dev/dri/card3"])
        self._delete_server(second)
        self.assertEqual(before, self._modes())

    def _modes(self) -> dict[str, int]:
        dev = self.hosts["host1"].roots.dev
        found = (path for path in dev.rglob("*") if not path.is_dir())
        return {f"/dev/{p.relative_to(dev)}": stat.S_IMODE(p.stat().st_mode) for p in found}


class DeviceFileModeTest(_NodesTestBase):
    """NVreg_DeviceFileMode=0660: whatever initialises NVIDIA's driver has its tool set the mode of
    each node."""

    CARD = "nvidia4"

    def prepare(self, host: hosts.Host) -> None:
        params = "DeviceFileUID: 0\nDeviceFileMode: 432\nModifyDeviceFiles: 1\n"
        (host.roots.proc / "driver/nvidia/params").write_text(params)

    def _nodes(self) -> list[pathlib.Path]:
        dev = self.hosts["host1"].roots.dev
        return [dev / self.CARD, dev / "nvidiactl", dev / "nvidia-uvm"]

    def _initialise(self) -> None:
        """As nvidia-smi does"""
        for node in self._nodes():
            node.chmod(0o660)

    def _modes(self) -> set[int]:
        return {stat.S_IMODE(node.stat().st_mode) for node in self._nodes()}

    @needs_root
    def test_what_a_guest_needs_holds_as_long_as_it_runs(self) -> None:
        self.start_host()
        self.assertIn("sets its device nodes to mode 0660 whenever", self.log())
        self._initialise()
        server = self.boot(self.gpu_flavor(1))
        self.assertEqual({0o666}, self._modes())
        said = "Device node /dev/nvidiactl of running guests was closed to them by another program"
        for _ in range(2):
            self._initialise()
            self.period()
            self.assertEqual({0o666}, self._modes())
        warnings = [line for line in self.log().splitlines() if said in line and "WARNING" in line]
        self.assertEqual(1, len(warnings))
        self._initialise()
        self.restart_host("host1")
        self.assertEqual({0o666}, self._modes())
        self._delete_server(server)
        self.assertEqual({0o660}, self._modes())
        self.period()
        self.assertEqual({0o660}, self._modes())
