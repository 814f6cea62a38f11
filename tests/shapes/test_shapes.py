# SPDX-License-Identifier: Apache-2.0
"""Six shapes of a machine, each in a guest of its own.

The VM has three roots beside its first, with QEMU's switches; on them and on the first are devices
of QEMU's that say in sysfs that they are cards. How these lie to each other is asked of the host's
kernel and of nova-gpu there, and in each guest of its kernel, of lspci and of nova-gpu.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from lab.vm import cards
from tests.shapes import tree
from tests.vfio import base, carried, images

# Python is slow in a guest whose processor is emulated: half a minute with the machine to itself.
_LOOKING_S = 900

# Of the switches on the first root beside the VM's own, and of the roots after that
_FIRST, _SECOND = cards.BOARD[:2], cards.BOARD[2:4]
_FAR, _NOWHERE = cards.BOARD[6:]


class ShapesTest(base.VFIOTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.cloud._run_periodics)

    def test_one_alone(self) -> None:
        server = self.same([["X"]], [_FAR], **{"gpu:guest_topology": "required"})
        ((path, node),) = self.places(server)
        self.assertFalse(path.startswith("pci0000:00/"))
        self.assertEqual(0, node)

    def test_two_below_one_switch(self) -> None:
        self.same(_pair("PIX"), _FIRST)

    def test_two_switches_of_one_root(self) -> None:
        self.same(_pair("PHB"), (_FIRST[0], _SECOND[1]), **{"gpu:guest_topology": "required"})

    def test_two_roots_of_one_node(self) -> None:
        self.addCleanup(self.host.own_up, _NOWHERE, ["numa_node"])
        self.host.pretend(_NOWHERE, {"numa_node": "0"})
        self.same(_pair("NODE"), (_FIRST[1], _NOWHERE), **{"gpu:guest_topology": "required"})

    def test_two_nodes(self) -> None:
        self.same(_pair("SYS"), (_SECOND[0], _FAR))

    def test_ten_cards_of_four_roots(self) -> None:
        """Two behind ports of one, two switches with two each on one, a switch with two and a port
        on one, and one alone; of two NUMA nodes and of none."""
        held = (*cards.LARGE, *cards.BOARD)
        found = tree.between(map(self.host.place_of, held))
        self.same(found, held)
        self.assertEqual({"X", "PIX", "PHB", "SYS", "?"}, {*itertools.chain(*found)})

    def same(self, expected: tree.Relations, held: Sequence[str], **words: str) -> dict[str, Any]:
        """The guest that has those of the cards, by a flavor with these words: to it and to its
        host they lie to each other as *expected*, whoever is asked."""
        server = self.started(held, words)
        on_host = [self.host.place_of(each) for each in held]
        self.assertEqual(expected, tree.between(on_host))
        self.assertEqual(expected, tree.shown(self.host.shown_topology(), held))
        in_guest = self.places(server)
        addresses = [path.rpartition("/")[2] for path, _ in in_guest]
        drawn = tree.drawn(self.said(server, "lspci"))
        self.assertEqual([path for path, _ in in_guest], [drawn[each] for each in addresses])
        self.assertEqual(expected, tree.between(in_guest))
        self.assertEqual(expected, tree.shown(self.said(server, "topology"), addresses))
        return server

    def started(self, held: Sequence[str], words: dict[str, str]) -> dict[str, Any]:
        self.become_tree(held)
        specs = {"gpus": f"= {len(held)}", "gpu_arch": "s== hopper", **words}
        size = {**self.cloud.FLAVOR, "memory_mb": carried.GUEST_MIB}
        flavor = self.cloud._create_flavor(**size, extra_spec=specs)
        server: dict[str, Any] = self.cloud.boot(flavor, image=images.LOOKING)
        self.assertEqual([*held], self.hostdevs(server))
        self.cloud.wait_for(
            f"{server['id']} has looked", lambda: self.has_looked(server), timeout_s=_LOOKING_S
        )
        return server

    def has_looked(self, server: dict[str, Any]) -> bool:
        return base.READY in self.cloud.console(server)

    def said(self, server: dict[str, Any], program: str) -> str:
        lines = re.findall(rf"^guest: {program} (.*?)\r?$", self.cloud.console(server), re.M)
        return "\n".join(lines)


def _pair(word: str) -> tree.Relations:
    return [["X", word], [word, "X"]]
