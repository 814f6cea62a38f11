# SPDX-License-Identifier: Apache-2.0
"""Cards of an HGX board for guests of KVM. Fabric Manager is a stand-in; see its fixture."""

from __future__ import annotations

from osc_lib import exceptions

from osc_gpu import capacity, explain
from osc_gpu.fleet import move_commands
from tests.fixtures import hosts, kernel, partitions
from tests.functional import base, boards, sdk

FIRST_HALF = ["0000:86:00.0", "0000:87:00.0", "0000:b8:00.0", "0000:bb:00.0"]
SECOND_HALF = ["0000:0f:00.0", "0000:10:00.0", "0000:41:00.0", "0000:44:00.0"]


class BoardTestBase(boards.BoardServersTestBase):
    def setUp(self) -> None:
        self.kernels: dict[str, kernel.Kernel] = {}
        super().setUp()

    def start_board(self, name: str) -> None:
        super().start_board(name)
        self.assertInventory(total=8, host=name)

    def add_drivers(self, name: str) -> None:
        self.kernels[name] = self.kernel(name, "nvidia")

    def prepare(self, host: hosts.Host) -> None:
        partitions.build(host, driver="nvidia")


class FabricTest(BoardTestBase):
    APART = True

    def test_a_board_and_its_guests(self) -> None:
        manager = self.managers["host1"]
        first = self.boot(self.gpu_flavor(4))
        self.assertGPUs(first, FIRST_HALF)
        self.assertActive(1)
        small = self.boot(self.gpu_flavor(1))
        self.assertActive(1, 11)
        self.assertIn("No valid host", self.boot_refused(self.gpu_flavor(3)))
        self._delete_server(small)
        self.assertActive(1)
        manager.says(lost=[2])
        self.period()
        self.assertIn("no free partition of 4 in any host", self.boot_refused(self.gpu_flavor(4)))
        self.assertIn("4 of 8 free, no free partition of 4", self.log())
        self.assertActive(1)
        manager.says()
        self.period()
        second = self.boot(self.gpu_flavor(4))
        self.assertGPUs(second, SECOND_HALF)
        self.assertActive(1, 2)
        self.assertIn("4 GPUs asked for, none free", self.boot_refused(self.gpu_flavor(4)))

        self.assertRestored(1, 2)

        self._stop_server(second)
        self.period()
        self._start_server(second)
        self._reboot_server(second, hard=True)
        self.assertActive(1, 2)

        # It is down: nobody new gets a card, and the guests stay
        manager.says("connect -9")
        self.period()
        self.assertGPUs(second, SECOND_HALF)
        self._delete_server(first)
        manager.says()
        self.period()
        self.assertActive(2)
        self._delete_server(second)
        self.assertActive()
        self.assertInventory(total=8, used=0)


class CapacityTest(BoardTestBase):
    def test_as_many_as_have_a_partition(self) -> None:
        one = self.flavor(**{"gpus": "= 1", "gpu:move": "cold"})
        servers = [self.boot(one) for _ in range(5)]
        four = self.gpu_flavor(4)
        self.assertEqual((0, "4 GPUs asked for, 3 of 8 free"), self.shown(four))
        for server in servers[1:4]:
            self._delete_server(server)
        said = "4 GPUs asked for, 6 of 8 free, no free partition of 4"
        self.assertEqual((0, said), self.shown(four))
        self.assertEqual((2, "no more GPUs"), self.shown(self.gpu_flavor(2)))
        # The traits are newer than the host's report.
        refused = self.boot(four, expected_state="ERROR")
        taken, _ = sdk.run(self, explain.ExplainServer, refused["id"])
        told = dict(zip(*taken, strict=True))
        self.assertIn(said, str(told["hosts"].machine_readable()))
        self.assertIn("4 GPUs asked for, no free partition of 4 in any host", told["fault"])
        self.assertRoomMade(four)

    def assertRoomMade(self, four: str) -> None:
        """One has a card in each half of host1, and one move makes a half whole."""
        wrong = self.assertRaises(
            exceptions.CommandError, sdk.run, self, move_commands.MakePlace, four
        )
        self.assertIn("there is room for 0 now", str(wrong))
        self.start_board("host2")
        self.boot(four, host="host2")
        self.boot(self.gpu_flavor(1), host="host2")
        taken, said = sdk.run(self, move_commands.MakePlace, four)
        (move,) = sdk.rows(taken)
        self.assertIn("room for 0 now; for 1 after 1 move. No plan has fewer.", said)
        self.assertEqual(("host1", "host2"), (move["From"], move["To"]))
        self._migrate_server({"id": move["Server"]})
        self.confirm({"id": move["Server"]}, source="host1")
        self.assertIn("no move is needed", sdk.run(self, move_commands.MakePlace, four)[1])
        placed = self.boot(four)
        self.assertEqual({"host1": 4}, self.allocated(placed))

    def shown(self, flavor: str) -> tuple[int, str]:
        """How many could boot on the host, and why no more"""
        (row,) = sdk.rows(sdk.run(self, capacity.ShowCapacity, flavor)[0])
        return row["Instances"], row["Reason"]


class OperationsTest(BoardTestBase):
    def test_what_is_done_to_a_guest_on_its_host(self) -> None:
        server = self.boot(self.gpu_flavor(4))
        other = self.boot(self.flavor(**{"gpus": "= 2", "gpu:on_stop": "release"}))
        self.assertActive(1, 5)
        self._reboot_server(server)
        self._rebuild_server(server, base.IMAGE)
        self.assertGPUs(server, FIRST_HALF)
        self.assertActive(1, 5)

        self._stop_server(other)
        self.assertActive(1)
        # What it had is given on, and it gets other cards
        third = self.boot(self.gpu_flavor(2))
        self.assertActive(1, 5)
        self._start_server(other)
        self.assertActive(1, 5, 6)
        self._delete_server(third)
        self.assertActive(1, 6)

        self.flags(shelved_offload_time=0)
        self._shelve_server(server)
        self.assertActive(6)
        self._unshelve_server(server)
        self.assertGPUs(server, FIRST_HALF)
        self.assertActive(1, 6)

        # Deleted while the service is down
        self.force_down("host1")
        self._delete_server(server)
        self.assertActive(1, 6)
        self.bring_back("host1")
        self.reap()
        self.period()
        self.assertActive(6)

    def test_resized_on_its_host(self) -> None:
        self.flags(allow_resize_to_same_host=True)
        server = self._resize_server(self.boot(self.gpu_flavor(4)), self.gpu_flavor(2))
        self.period()
        self.assertActive(1, 5)
        server = self._revert_resize(server)
        self.assertGPUs(server, FIRST_HALF)
        self.period()
        self.assertActive(1)
        server = self._resize_server(server, self.gpu_flavor(1))
        self.confirm(server, source="host1")
        self.period()
        self.assertActive(11)


class MovesTest(boards.TwoBoards, BoardTestBase):
    def half(self) -> str:
        return self.gpu_flavor(4)

    def assertHasHalf(self) -> None:
        self.assertGPUs(self.server, FIRST_HALF)

    def test_cold_migration(self) -> None:
        self._migrate_server(self.server)
        # Until it is confirmed the cards at the source are the instance's as well.
        self.assertStates([1], [1, 2])
        self._revert_resize(self.server)
        self.assertHasHalf()
        self.assertStates([1], [1])
        self._migrate_server(self.server)
        self.confirm(self.server, source="host1")
        self.assertGPUs(self.server, SECOND_HALF, "host2")
        self.assertStates([], [1, 2])
