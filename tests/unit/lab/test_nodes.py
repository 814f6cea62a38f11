# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib

import fixtures
import testtools

from lab.cloud import nodes


class NvidiaTest(testtools.TestCase):
    def test_a_driver_makes_the_nodes_real(self) -> None:
        """/dev/null stands in: a node is judged by its number, and 195 cannot be had here."""
        dev = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (dev / "nvidia0").symlink_to("/dev/null")
        self.patch(nodes, "_NVIDIA_MAJOR", 1)
        without = "Character devices:\n  5 /dev/tty\n"
        self.assertEqual([str(dev / "nvidia0")], nodes.pretended_in(dev, without))
        self.assertEqual([], nodes.pretended_in(dev, without + "  1 mem\n"))
