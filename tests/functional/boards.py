# SPDX-License-Identifier: Apache-2.0
"""Hosts with an HGX board each. Fabric Manager is a stand-in; see its fixture."""

from __future__ import annotations

from tests.fixtures import nvfm, partitions
from tests.fixtures import nvml as machines
from tests.functional import kvm


class BoardServersTestBase(kvm.KVMServersTestBase):
    """Each host has a board, and a Fabric Manager: ``managers``.

    ``APART``: whether its library is called in processes of their own, as in a cloud. ``MODE``: of
    whole cards, 1, or of vGPUs that are all of a card, 2.
    """

    APART = False
    MODE = 1

    def setUp(self) -> None:
        self.managers: dict[str, nvfm.FabricManager] = {}
        super().setUp()
        self.flags(nvml=True, group="gpu")
        self.useFixture(machines.Library(*partitions.nvml_cards()))
        if not self.APART:
            self.useFixture(nvfm.AtHand())
        self.start_board("host1")

    def start_board(self, name: str) -> None:
        self.managers[name] = self.useFixture(
            nvfm.FabricManager(partitions.H100, mode=self.MODE, modules=partitions.MODULES)
        )
        self.start_host(name, machine="cpu-only")
        self.add_drivers(name)
        self.period(name)

    def add_drivers(self, name: str) -> None:
        """What a host has when it was started and has not looked again"""

    def _point_options_at(self, name: str) -> None:
        super()._point_options_at(name)
        self.flags(fabric_manager_address=self.managers[name].socket, group="gpu")

    def assertActive(self, *numbers: int, host: str = "host1") -> None:
        self.assertEqual(set(numbers), self.managers[host].active)

    def assertRestored(self, *numbers: int) -> None:
        """Active again on host1 when Fabric Manager has restarted, and then nova-compute"""
        self.managers["host1"].restart()
        self.period()
        self.assertActive(*numbers)
        self.managers["host1"].set_active([1, 7])
        self.restart_host("host1")
        self.period()
        self.assertActive(*numbers)

    def assertStates(self, first: list[int], second: list[int]) -> None:
        """What is active on each host now, and after a period of each"""
        for _ in range(2):
            self.assertActive(*first, host="host1")
            self.assertActive(*second, host="host2")
            self.periods()

    def delete_everything(self) -> None:
        super().delete_everything()
        for name in self.managers:
            self.period(name)
            self.assertActive(host=name)


class TwoBoards:
    """Two hosts, whose cards have the same addresses"""

    def half(self) -> str:
        """A flavor of half a board"""
        raise NotImplementedError

    def assertHasHalf(self) -> None:
        """The instance has the first one of host1."""
        raise NotImplementedError

    def setUp(self) -> None:
        super().setUp()
        self.server = self.boot(self.half())
        self.start_board("host2")
        # At host2 the instance gets what is somebody else's at host1
        self.stranger = self.boot(self.half(), host="host2")
        self.assertStates([1], [1])

    def test_evacuation_and_the_way_back(self) -> None:
        self.force_down("host1")
        self._evacuate_server(self.server, expected_host="host2")
        self.assertActive(1, host="host1")
        self._start_server(self.server)
        self.assertActive(1, 2, host="host2")
        self.bring_back("host1")
        self.assertStates([], [1, 2])
        self._migrate_server(self.server)
        self.confirm(self.server, source="host2")
        self.assertHasHalf()
        self.assertStates([1], [1])
