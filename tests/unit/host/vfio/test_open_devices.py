# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
import pathlib
import unittest

import fixtures
from oslotest import base

from nova_gpu.host import processes
from nova_gpu.host.vfio import open_devices
from tests.fixtures import hosts, nodes, pci
from tests.fixtures.bases.host import HostTestCase

CARD, AUDIO = "0000:81:00.0", "0000:81:00.1"


class TestNumbers(HostTestCase):
    def numbers(self) -> set[tuple[int, int]]:
        return set(open_devices.numbers(self.gpu_at(CARD), self.host.roots))

    def device(self, path: pathlib.Path, number: str, subsystem: str | None = None) -> None:
        path.mkdir(parents=True)
        (path / "dev").write_text(f"{number}\n")
        if subsystem:
            pci.link(path / "subsystem", self.host.roots.sysfs / "class" / subsystem)

    def test_every_function(self) -> None:
        self.host.add_gpu(CARD, "1002", "74a1", companions=(pci.AUDIO,))
        self.device(self.host.path(AUDIO) / "sound/card0/controlC0", "116:2", "sound")
        self.assertEqual({(226, 1), (226, 129), (116, 2)}, self.numbers())

    def test_what_can_be_taken_away(self) -> None:
        self.host.add_gpu(CARD, "10de", "1e04", driver=None, companions=(pci.AUDIO,))
        self.device(self.host.path(AUDIO) / "sound/card0/input9/event9", "13:73", "input")
        self.assertEqual(set(), self.numbers())

    def test_what_vfio_makes(self) -> None:
        self.host.add_gpu(CARD, "10de", "1e04", driver="vfio-pci", iommu_group=26)
        self.device(self.host.path(CARD) / "vfio-dev/vfio1", "511:0", "vfio-dev")
        self.device(self.host.roots.sysfs / "class/vfio/26", "510:3")
        self.device(self.host.roots.sysfs / "class/vfio/27", "510:4")
        self.assertEqual({(511, 0), (510, 3)}, self.numbers())

    @unittest.skipIf(os.geteuid() != 0, "mknod needs root")
    def test_nvidias_nodes(self) -> None:
        self.host = hosts.Host(self.root / "nvidia", nodes=nodes.Nodes.DEVICES)
        self.host.add_gpu("0000:02:00.0", "10de", "1e04", minor=1)
        self.host.add_gpu(CARD, "10de", "1e04", minor=5)
        self.assertEqual({(195, 5)}, self.numbers())


class TestHolders(base.BaseTestCase):
    def test_one_that_ends_meanwhile(self) -> None:
        """It keeps nobody from being found."""
        proc = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (proc / "811").mkdir()
        (proc / "812/fd").mkdir(parents=True)
        (proc / "812/fd/7").symlink_to("/dev/null")
        found = list(processes.holders(str(proc), {(1, 3)}))
        self.assertEqual([(812, "?", [(1, 3)])], found)
