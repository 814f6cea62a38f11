# SPDX-License-Identifier: Apache-2.0
"""Guests that see the host's tree of PCI Express, and cards with large BARs.

The VM has three roots beside its first, with QEMU's switches; on them and on the first are devices
of QEMU's that say in sysfs that they are cards. Guests see whose they are.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from typing import Any

from lab.vm import cards
from nova_gpu.cmd import cards as listed
from nova_gpu.cmd import topology
from nova_gpu.host.pci import discovery, selection
from tests.fixtures import hosts
from tests.vfio import base

_NAMES = re.compile(r"\S*0000:\S+")
_HELD = [*cards.LARGE, *cards.BOARD]

_Place = tuple[str, int]


class GuestTreeTest(base.VFIOTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.cloud._run_periodics)
        self.become_tree(_HELD)

    def test_ten_cards_of_four_roots(self) -> None:
        """Two behind ports of one, two switches with two each on one, a switch with two and a port
        on one, and one alone; of two NUMA nodes and of none."""
        server = self.cloud.boot(self.cloud.flavor(gpus="= 10", gpu_arch="s== hopper"))
        self.assertEqual(_HELD, self.hostdevs(server))
        seen = self.seen_topology(server)
        self.assertEqual(self.topology(map(self.host.place_of, _HELD)), seen)
        self.assertEqual({"X", "PIX", "PHB", "SYS", "?"}, _words(seen))
        self.assertEqual([8, 64], self.large_bars(server))

    def seen_topology(self, server: dict[str, Any]) -> str:
        """What ``nova-gpu topology`` says of the cards in the guest"""
        self.seen_in(server)
        return self.topology(self.places(server))

    def topology(self, places: Iterable[_Place]) -> str:
        """What the command prints of cards at these places, without their names"""
        host = hosts.Host(self.enterContext(tempfile.TemporaryDirectory()))
        for path, node in places:
            host.add_gpu_at(path, node, "10de", "2321")
        nvidia = selection.Selection.parse(["10de"], [], [])
        gpus = discovery.discover(host.roots, nvidia, {}, dict)
        shown = topology.picture([listed.Card(gpu, None) for gpu in gpus], {}, None)
        return "\n".join(_NAMES.sub("", line) for line in shown)


def _words(shown: str) -> set[str]:
    """How the cards lie to each other, of the lines of the command's matrix"""
    _, matrix, _ = shown.split("\n\n")
    return {word for row in matrix.splitlines()[1:] for word in row.split()[1:]}
