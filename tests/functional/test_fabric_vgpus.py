# SPDX-License-Identifier: Apache-2.0
"""vGPUs that are all of a card each, on an HGX board. Fabric Manager is a stand-in; see its
fixture."""

from __future__ import annotations

from tests.fixtures import hosts, partitions, profiling_kernel, vgpu
from tests.functional import alone, base, boards, profiled
from tests.functional.base import Server

FIRST_HALF = [f"0000:{bus}:00.4" for bus in ("86", "87", "b8", "bb")]
SECOND_HALF = [f"0000:{bus}:00.4" for bus in ("0f", "10", "41", "44")]
_NUMBER = 1396


class VGPUBoardTestBase(boards.BoardServersTestBase, profiled.ProfiledServersTestBase):
    PRODUCT = "10de_2330"
    MODE = 2

    def prepare(self, host: hosts.Host) -> None:
        partitions.build(host, functions=2, driver="nvidia")
        self.kernels[f"host{len(self.kernels) + 1}"] = self.useFixture(
            profiling_kernel.ProfilingKernel(host, vgpu.H100)
        )

    def whole(self, count: int) -> str:
        """A flavor with so many that are all of a card each"""
        return self.flavor(vgpus=f"= {count}", vgpu_type="NVIDIA H100XM-80C")

    def assertHas(self, server: Server, functions: list[str], host: str = "host1") -> None:
        self.assertVGPUs(server, profiled.slots(_NUMBER, *functions), host)


class BoardTest(alone.Alone, VGPUBoardTestBase):
    def test_a_board_and_its_guests(self) -> None:
        manager = self.managers["host1"]
        first = self.boot(self.whole(4))
        self.assertHas(first, FIRST_HALF)
        self.assertActive(1)
        self.assertEqual([f"1 {self.by_module(1, 2, 3, 4)}"], manager.functions())
        small = self.boot(self.whole(1))
        half = self.boot(self.of_type(1395))
        self.assertActive(1, 11)
        self._delete_server(half)
        self._delete_server(small)
        self.assertActive(1)
        second = self.boot(self.whole(4))
        self.assertHas(second, SECOND_HALF)
        self.assertActive(1, 2)
        third = self.boot(self.whole(4), expected_state="ERROR")
        said = "4 vGPUs (type nvidia_h100xm_80c) asked for, none free"
        self.assertIn(said, self._show_server(third)["fault"]["message"])

        self._reboot_server(second, hard=True)
        self._reboot_server(second)
        self._stop_server(second)
        self.period()
        self._start_server(second)
        self.assertActive(1, 2)
        self.assertEqual(3, len(manager.functions()))

        self.assertRestored(1, 2)
        self._delete_server(first)
        self.assertActive(2)

    def by_module(self, *modules: int) -> str:
        cards = {module: card for card, module in partitions.MODULES.items()}
        return " ".join(f"{cards[module][:-1]}4" for module in modules)


class OperationsTest(boards.TwoBoards, VGPUBoardTestBase):
    def half(self) -> str:
        return self.whole(4)

    def assertHasHalf(self) -> None:
        self.assertHas(self.server, FIRST_HALF)

    def test_moves(self) -> None:
        self._rebuild_server(self.server, base.IMAGE)
        self.assertHasHalf()
        self._resize_server(self.server, self.whole(2))
        self.assertStates([1], [1, 5])
        self._revert_resize(self.server)
        self.assertHasHalf()
        self.assertStates([1], [1])
        self._resize_server(self.server, self.whole(2))
        self.confirm(self.server, source="host1")
        self.assertStates([], [1, 5])
