# SPDX-License-Identifier: Apache-2.0
"""Guests with pinned processors, whose GPUs are on the NUMA nodes of their cells."""

from __future__ import annotations

from typing import Any

from nova.tests.fixtures import libvirt as fakelibvirt

from tests.functional import divided, kvm, live
from tests.functional.base import Server

# Four processors on each of two nodes, as the cards of FIRST_SOCKET and SECOND_SOCKET.
NODE = {
    card: node for node, cards in enumerate((kvm.FIRST_SOCKET, kvm.SECOND_SOCKET)) for card in cards
}


class Pinned:
    """Hosts whose processors are pinned, with huge pages"""

    ADDITIONAL_FILTERS = ("GPUFilter", "NUMATopologyFilter")

    def setUp(self: Any) -> None:
        super().setUp()  # type: ignore[misc]
        self.flags(cpu_dedicated_set="0-7", group="compute")

    def start_host(self: Any, name: str = "host1", *args: Any, **kwargs: Any) -> None:
        pages = fakelibvirt.create_mempages([(4, 1 << 18), (2048, 1024)])
        of_host = {"cpu_nodes": 2, "cpu_cores": 2, "cpu_threads": 2, "mempages": [pages, pages]}
        info = fakelibvirt.HostInfo(**of_host)
        super().start_host(name, *args, host_info=info, **kwargs)  # type: ignore[misc]

    def pinned(self: Any, gpus: int, cells: int = 1, **words: str) -> str:
        """A flavor with a processor on each of so many nodes"""
        specs = {"hw:cpu_policy": "dedicated", "hw:numa_nodes": str(cells)}
        specs |= {"hw:mem_page_size": "2048", **words}
        if gpus:
            specs["gpus"] = f"= {gpus}"
        small = {"memory_mb": 128 * cells, "vcpu": cells, "disk": 1, "ephemeral": 0}
        return str(self._create_flavor(**small, extra_spec=specs))

    def cells(self: Any, server: Server) -> list[int]:
        return sorted(cell.id for cell in self.instance(server).numa_topology.cells)


class PinnedTest(Pinned, kvm.KVMServersTestBase):
    def places(self, server: Server, host: str = "host1") -> list[int]:
        """The host's nodes of the guest's cards, which are the ones that Nova has for it"""
        cards = self.rendered(server, host)
        self.assertEqual(cards, self.recorded(server))
        self.assertEqual({host: len(cards)}, self.allocated(server))
        return [NODE[card] for card in cards]

    def assertPlaced(
        self, cells: list[int], cards: list[int], server: Server, host: str = "host1"
    ) -> None:
        """It has its cells, and its cards, on these nodes of the host."""
        self.assertEqual((cells, cards), (self.cells(server), self.places(server, host)))

    def test_new_guests(self) -> None:
        """Nova puts a cell on the first of those nodes that have the most processors left."""
        self.start_host()
        self.boot(self.pinned(0))
        self.assertPlaced([1], [1], self.boot(self.pinned(1)))
        self.boot(self.pinned(0))
        # Nova chose the second node, where one card is left.
        pair = self.boot(self.pinned(2))
        self.assertPlaced([0], [0, 0], pair)
        self.assertIn("Moved cells from NUMA nodes [1] to [0]", self.log())
        self._delete_server(pair)
        self.period()

        fault = self.boot_refused(self.pinned(3))
        self.assertIn("3 GPUs asked for on one NUMA node with its processors and memory", fault)
        policy = {"hw:pci_numa_affinity_policy": "preferred"}
        self.assertPlaced([0], [0, 0, 1], preferring := self.boot(self.pinned(3, **policy)))
        # Who has them keeps them.
        self.flags(pci_numa_affinity_policy="required", group="gpu")
        self._reboot_server(preferring, hard=True)
        self.restart_host("host1")
        self.assertPlaced([0], [0, 0, 1], preferring)
        self._delete_server(preferring)
        self.period()
        self.assertPlaced([0, 1], [0, 0, 1], self.boot(self.pinned(3, cells=2)))

    def test_moved_guests(self) -> None:
        for host in ("host1", "host2"):
            self.start_host(host)
            self.boot(self.pinned(0), host=host)
        server = self.boot(self.pinned(2), host="host1")
        self.assertPlaced([1], [1, 1], server)
        self._migrate_server(server)
        self.assertPlaced([1], [1, 1], server, "host2")
        self._revert_resize(server)
        self.assertPlaced([1], [1, 1], server)
        self._shelve_server(server)
        # Meanwhile others have what it had.
        for host in ("host1", "host2"):
            self.boot(self.pinned(1), host=host)
        self.boot(self.pinned(0), host="host2")
        self._unshelve_server(server)
        for _ in range(2):
            host = self.host_of(server)
            self.assertPlaced([0], [0, 0], server, host)
            self.force_down(host)
            self._evacuate_server(server)
            self.bring_back(host)
        self.periods()
        self.assertPlaced([0], [0, 0], server, self.host_of(server))


class PinnedPartsTest(Pinned, live.Moving, divided.DividedServersTestBase):
    """Mediated devices, by the policy ``preferred``"""

    def test_parts_of_a_card_of_the_node_of_its_cell(self) -> None:
        for host in ("host1", "host2"):
            self.start_host(host)
            self.boot(self.pinned(0), host=host)
        words = {"resources:VGPU": "2", "trait:CUSTOM_GPU_VGPU_TYPE_NVIDIA_64": "required"}
        server = self.boot(self.pinned(0, **words), host="host1")
        own = divided.slots(divided.SECOND, 64, 0, 1)
        self.assertVGPUs(server, own)
        self.live_migrate(server)
        self.assertVGPUs(server, own, "host2")
        self.assertEqual([1], self.cells(server))
