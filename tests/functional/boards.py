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

    def assertStates(self, first: list[int], second: list[int]) -> None:
        """What is active on each host now, and after a period of each"""
        for _ in range(2):
            self.assertActive(*first, host="host1")
            self.assertActive(*second, host="host2")
            self.period("host1")
            self.period("host2")

    def delete_everything(self) -> None:
        super().delete_everything()
        for name in self.managers:
            self.assertActive(host=name)
