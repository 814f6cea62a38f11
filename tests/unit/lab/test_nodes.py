# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib

import fixtures
import testtools

from lab.cloud import nodes


class CopiedTest(testtools.TestCase):
    def test_as_they_are(self) -> None:
        (node,) = nodes.copied(["null", "no-such-node"])
        self.assertEqual(nodes.Node("null", "c", 1, 3, 0o666), node)
        self.assertEqual("/dev/null", node.path)

    def test_files_are_none(self) -> None:
        dev = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (dev / "nvidia0").write_text("")
        self.assertEqual([], nodes.copied(["nvidia0"], dev))


class NvidiaTest(testtools.TestCase):
    def test_numbers(self) -> None:
        by_name = {node.name: (node.major, node.minor) for node in nodes.pretend_nvidia([0, 5])}
        self.assertEqual((195, 5), by_name["nvidia5"])
        self.assertEqual((195, 255), by_name["nvidiactl"])
        self.assertNotIn("nvidia1", by_name)

    def test_a_driver_makes_the_nodes_real(self) -> None:
        """/dev/null stands in: a node is judged by its number, and 195 cannot be had here."""
        dev = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (dev / "nvidia0").symlink_to("/dev/null")
        self.patch(nodes, "_NVIDIA_MAJOR", 1)
        without = "Character devices:\n  5 /dev/tty\n"
        self.assertEqual([str(dev / "nvidia0")], nodes.pretended_in(dev, without))
        self.assertEqual([], nodes.pretended_in(dev, without + "  1 mem\n"))
