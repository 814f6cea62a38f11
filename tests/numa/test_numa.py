# SPDX-License-Identifier: Apache-2.0
"""A guest with pinned processors on a host of two NUMA nodes, each with a processor and cards.

The cards are those of :mod:`tests.vfio.test_guest_tree`: devices of QEMU's that say so in sysfs.
"""

from __future__ import annotations

from typing import Any

from lab.vm import cards
from tests.vfio import base

# A card of each node
_HELD = (cards.BOARD[0], cards.BOARD[4])
_CELL_MIB = 128
# Half of a cell's pages, of which a guest's BIOS and kernel leave out some
_LEAST = _CELL_MIB * 256 // 2


class NUMATest(base.VFIOTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.cloud._run_periodics)
        self.addCleanup(self.cloud.flags, cpu_dedicated_set=None, group="compute")
        self.cloud.flags(cpu_dedicated_set="0-1", group="compute")
        self.cloud.restart_compute()
        self.become_tree(_HELD)

    def test_one_guest_on_both_nodes(self) -> None:
        self.assertTogether(self.boot(2))

    def test_a_guest_on_each_node(self) -> None:
        self.assertTogether(self.boot(1), self.boot(1))

    def assertTogether(self, *servers: dict[str, Any]) -> None:
        """All run at once, each on the nodes of its cards, of which it sees each on the cell there.

        A guest's cells are those of Nova, whose order its processors have, too.
        """
        held = []
        for server in servers:
            cards_held = self.hostdevs(server)
            held += cards_held
            nodes = [self.host.place_of(card)[1] for card in cards_held]
            domain = self.cloud.domain(server)
            threads = self.host.nodes_of_threads(domain)
            self.assertEqual(nodes, sorted(set().union(*threads.values())))
            memory = self.host.nodes_of_memory(domain, _LEAST)
            self.assertEqual([[node] for node in nodes], sorted(memory))
            self.seen_in(server)
            pinned = [threads[f"CPU {cell}/KVM"] for _, cell in self.places(server)]
            self.assertEqual([[node] for node in nodes], pinned)
        self.assertEqual([*_HELD], sorted(held))
        self.assertEqual(len(servers), len(self.domains()))

    def boot(self, cells: int) -> dict[str, Any]:
        """A guest with so many cells, each with a processor, and as many cards"""
        size = {**self.cloud.FLAVOR, "memory_mb": _CELL_MIB * cells, "vcpu": cells}
        specs = {"gpus": f"= {cells}", "gpu_arch": "s== hopper", "hw:cpu_policy": "dedicated"}
        specs |= {"hw:numa_nodes": str(cells), "hw:pci_numa_affinity_policy": "required"}
        specs["gpu:guest_topology"] = "required"  # else a guest with one cell sees no node
        server: dict[str, Any] = self.cloud.boot(
            self.cloud._create_flavor(**size, extra_spec=specs)
        )
        return server
