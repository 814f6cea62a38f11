# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu plan``, ``gpu drain`` and ``gpu defrag``, and what Nova does with their moves."""

from __future__ import annotations

import json
from typing import Any

from osc_gpu import capacity, host_list
from osc_gpu_fleet import move_commands
from tests.functional import base, reported, room, sdk


class RoomTest(room.RoomTestBase):
    def places(self) -> int:
        return sum(row[1] for row in self.values(capacity.ShowCapacity, "eight"))

    def move(self, row: tuple[object, ...]) -> None:
        """As an operator does what the plan says"""
        _, uuid, _, source, destination, _, _, command = row
        self.assertEqual(
            f"openstack --os-compute-api-version 2.56 server migrate --host {destination} {uuid}",
            command,
        )
        server = {"id": uuid}
        self.assertEqual(source, self.host_of(server))
        self.admin_api.post_server_action(str(uuid), {"migrate": {"host": destination}})
        self._wait_for_state_change(server, "VERIFY_RESIZE")
        self.assertEqual(0, self.places(), "until it is confirmed the source keeps its GPU")
        self.confirm(server, source=str(source))

    def test_moves_that_make_place(self) -> None:
        self.assertEqual(0, self.places())
        (row,) = self.values(move_commands.MakeRoom, "eight")
        self.assertEqual(("yields", "host1", "host2", "frees 1 of host1"), (row[2], *row[3:6]))
        self.documented("plan", move_commands.MakeRoom, "eight")
        self.documented("drain", move_commands.Drain, "host1")
        self.assertEqual([row], self.values(move_commands.Defragment))
        self.assertEqual([row], self.values(move_commands.Defragment, "--flavor", "eight"))
        _, printed, _ = sdk.shown(self, move_commands.MakeRoom, "eight", "-f", "json")
        self.assertEqual(["yields"], [row["Name"] for row in json.loads(printed)])
        # Nothing was moved by any of these.
        self.assertGPUs(self.server, [base.FIRST_SOCKET[0]], "host1")

        self.move(row)
        self.assertEqual({"host2": 1}, self.allocated(self.server))
        self.assertEqual(1, self.places())
        for command, *arguments, text in (
            (move_commands.MakeRoom, "eight", "eight: room for 1 now; no move is needed.\n"),
            (move_commands.Drain, "host1", "host1: no instance has GPUs of it.\n"),
            (move_commands.Defragment, "eight: room for 1 now; no moves make room for more.\n"),
        ):
            status, printed, beside = sdk.shown(self, command, *arguments)
            self.assertEqual((0, "\n", text), (status, printed, beside))

    def apply(self, command: type, *arguments: str) -> tuple[list[tuple[Any, ...]], str]:
        """What is printed by it, and beside it"""
        taken, output = sdk.run(self, command, *arguments, "--apply")
        return list(taken[1]), output

    def test_what_no_moves_make_room_for(self) -> None:
        nine = self.flavor("nine", gpus="9")
        self.assertIn("no host has 9 GPUs in service", self.refusal(move_commands.MakeRoom, nine))

    def test_applied(self) -> None:
        (row,), output = self.apply(move_commands.MakeRoom, "eight")
        self.assertEqual(("yields", "host1", "host2"), (row[2], *row[3:5]))
        self.assertIn(
            f"step 1 of 1: yields ({self.server['id']}) from host1 to host2; it is shut down, "
            "moved and started\n",
            output,
        )
        self.assertGPUs(self.server, [base.FIRST_SOCKET[0]], "host2")
        self.assertEqual(1, self.places())
        self.assertEqual([], self.apply(move_commands.MakeRoom, "eight")[0])

    def test_drained_beside_other_releases(self) -> None:
        one, target = self.gpu_flavor(1), "host2"
        for name, change in reported.READABLE.items():
            with self.subTest(name):
                reported.report_as(self, target, change)
                (row,), _ = self.apply(move_commands.Drain, self.source)
                self.assertEqual(("yields", self.source, target), (row[2], *row[3:5]))
                self.assertEqual(target, self.host_of(self.server))
                reported.report_as(self, self.source, change)
                self.assertIn("is drained", self.boot_refused(one, host=self.source))
                self.values(move_commands.Drain, self.source, "--undo")
                self._delete_server(self.boot(one, host=self.source))
                self.period(self.source)
                self.source, target = target, self.source
        reported.report_as(self, target, reported.unreadable)
        refusal = self.refusal(move_commands.Drain, self.source, "--apply")
        self.assertIn("NoValidHost", refusal)
        self.assertIn("No step is made, and none after it is begun", refusal)
        self.assertEqual(self.source, self.host_of(self.server))

    def listed(self) -> str:
        (cell,) = [row[1] for row in self.values(host_list.ListHosts) if row[0] == "host1"]
        return str(cell)

    def test_drained_until_that_is_undone(self) -> None:
        _, output = self.apply(move_commands.Drain, "host1")
        self.assertIn(
            "host1: no new instance gets GPUs of it, until openstack gpu drain host1 --undo\n",
            output,
        )
        one = self.gpu_flavor(1)
        reason = "drained"
        self.assertEqual(reason, self.listed())
        self.period()
        self.restart_host("host1")
        self.period()
        self.assertEqual(reason, self.listed())
        refused = "the requested host is drained: it takes no new instance with GPUs"
        self.assertIn(refused, self.boot_refused(one, host="host1"))
        plain = self.boot(self.flavor(), host="host1")
        self.assertEqual(["host2"] * 2, [self.host_of(self.boot(one)) for _ in range(2)])
        # Nor does one of its own come to have GPUs there.
        self._resize_server(plain, one)
        self.assertEqual("host2", self.host_of(plain))
        self.assertEqual([], self.values(move_commands.MakeRoom, one))

        self.assertEqual([], self.values(move_commands.Drain, "host1", "--undo"))
        self.assertEqual("up", self.listed())
        self.boot(one, host="host1")
        stays = "stays: it runs, and its flavor does not say gpu:move cold\n  each instance has"
        self.assertIn(stays, self.refusal(move_commands.Drain, "host1"))
        refusal = self.refusal(move_commands.Drain, "host1", "--undo", "--apply")
        self.assertIn("give only one", refusal)
        self.assertIn("no host called x", self.refusal(move_commands.Drain, "x", "--undo"))
        self.assertIn(
            "no host with GPUs is called x", self.refusal(move_commands.Drain, "x", "--apply")
        )
