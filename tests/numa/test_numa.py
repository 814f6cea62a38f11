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

    def test_a_cell_on_each(self) -> None:
        """The guest sees each card on that of its cells which is on the card's node."""
        server = self.boot(2)
        self.assertEqual([*_HELD], self.hostdevs(server))
        self.assertEqual([0, 1], [self.host.place_of(card)[1] for card in _HELD])
        domain = self.cloud.domain(server)
        threads = self.host.nodes_of_threads(domain)
        pinned = [threads[f"CPU {number}/KVM"] for number in range(2)]
        self.assertEqual([[0], [1]], sorted(pinned))
        self.assertEqual([[0], [1]], sorted(self.host.nodes_of_memory(domain, _LEAST)))
        self.seen_in(server)
        # The guest's cells are those of Nova, whose order the processors have, too.
        cells = [cell for _, cell in self.places(server)]
        self.assertEqual([[0], [1]], [pinned[cell] for cell in cells])

    def boot(self, cells: int) -> dict[str, Any]:
        """A guest with so many cells, each with a processor, and as many cards"""
        size = {**self.cloud.FLAVOR, "memory_mb": _CELL_MIB * cells, "vcpu": cells}
        specs = {"gpus": f"= {cells}", "gpu_arch": "s== hopper", "hw:cpu_policy": "dedicated"}
        specs |= {"hw:numa_nodes": str(cells), "hw:pci_numa_affinity_policy": "required"}
        server: dict[str, Any] = self.cloud.boot(
            self.cloud._create_flavor(**size, extra_spec=specs)
        )
        return server
