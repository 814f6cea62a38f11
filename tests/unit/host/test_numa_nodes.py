# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pathlib

import fixtures
from oslotest import base

from nova_gpu.host import numa_nodes
from nova_gpu.host.roots import Roots


class CpulistTest(base.BaseTestCase):
    def test_what_the_kernel_says(self) -> None:
        roots = Roots(sysfs=pathlib.Path(self.useFixture(fixtures.TempDir()).path))
        for node, text in ((0, "0-7,16-23\n"), (1, "\n")):
            folder = roots.sysfs / f"devices/system/node/node{node}"
            folder.mkdir(parents=True)
            (folder / "cpulist").write_text(text)
        found = [numa_nodes.cpulist(node, roots) for node in (0, 1, 2)]
        self.assertEqual(["0-7,16-23", "", ""], found)
