# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu plan``, ``gpu drain`` and ``gpu defrag``, and what Nova does with their moves."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any
from unittest import mock

import fixtures
from openstack.compute.v2 import _proxy
from osc_lib import exceptions

from osc_gpu import capacity, providers, rest
from osc_gpu.fleet import move_commands, moves
from tests.functional import base, divided, killed, live, sdk
from tests.functional.shown import ShownTestBase


class RoomTestBase(ShownTestBase):
    """``source``: the host from which an instance moves next."""

    source = "host1"

    def setUp(self) -> None:
        super().setUp()
        # What is of a host alone takes all eight cards of host1.
        self.flavor("eight", gpus="8")
        yields = self.flavor(**{"gpus": "= 1", "gpu_arch": "s== fermi", "gpu:move": "cold"})
        self.server = self.boot(yields, host="host1", name="yields")
        self.useFixture(fixtures.MockPatchObject(rest, "POLL_S", 0.1))
        confirm: Callable[..., None] = _proxy.Proxy.confirm_server_resize

        def at_the_source(proxy: Any, server: Any) -> None:
            with self.on(self.source):  # as for tests.functional.base.GPUServersTestBase.confirm
                confirm(proxy, server)

        self.useFixture(
            fixtures.MockPatchObject(_proxy.Proxy, "confirm_server_resize", at_the_source)
        )


class RoomTest(RoomTestBase):
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
        (row,) = self.values(move_commands.MakePlace, "eight")
        self.assertEqual(("yields", "host1", "host2", "frees 1 of host1"), (row[2], *row[3:6]))
        self.documented("plan", move_commands.MakePlace, "eight")
        self.documented("drain", move_commands.Drain, "host1")
        self.assertEqual([row], self.values(move_commands.Defragment))
        self.assertEqual([row], self.values(move_commands.Defragment, "--flavor", "eight"))
        _, printed, _ = sdk.shown(self, move_commands.MakePlace, "eight", "-f", "json")
        self.assertEqual(["yields"], [each["Name"] for each in json.loads(printed)])
        # Nothing was moved by any of these.
        self.assertGPUs(self.server, [base.FIRST_SOCKET[0]], "host1")

        self.move(row)
        self.assertEqual({"host2": 1}, self.allocated(self.server))
        self.assertEqual(1, self.places())
        for command, *arguments, said in (
            (move_commands.MakePlace, "eight", "eight: room for 1 now; no move is needed.\n"),
            (move_commands.Drain, "host1", "host1: no instance has GPUs of it.\n"),
            (move_commands.Defragment, "eight: room for 1 now; no moves make room for more.\n"),
        ):
            status, printed, beside = sdk.shown(self, command, *arguments)
            self.assertEqual((0, "\n", said), (status, printed, beside))

    def apply(self, command: type, *arguments: str) -> tuple[list[tuple[Any, ...]], str]:
        """What is printed by it, and beside it"""
        taken, said = sdk.run(self, command, *arguments, "--apply")
        return list(taken[1]), said

    def test_applied(self) -> None:
        (row,), said = self.apply(move_commands.MakePlace, "eight")
        self.assertEqual(("yields", "host1", "host2"), (row[2], *row[3:5]))
        self.assertIn(
            f"step 1 of 1: yields ({self.server['id']}) from host1 to host2; it is shut down, "
            "moved and started\n",
            said,
        )
        self.assertGPUs(self.server, [base.FIRST_SOCKET[0]], "host2")
        self.assertEqual(1, self.places())
        self.assertEqual([], self.apply(move_commands.MakePlace, "eight")[0])

    def test_applied_when_nothing_is_as_it_was(self) -> None:
        """What happens between the plan and its first move"""
        make = moves.make

        def late(*args: Any) -> None:
            self._stop_server(self.server)
            make(*args)

        with mock.patch.object(moves, "make", late):
            said = str(self.assertRaises(moves.Stopped, self.apply, move_commands.Drain, "host1"))
        self.assertIn(
            f"step 1 of 1, yields ({self.server['id']}): it has changed since the plan", said
        )
        self.assertIn("SHUTOFF on host1. No step is made, and none after it is begun", said)
        # It is another plan now, and has no less.
        self.assertEqual(1, len(self.apply(move_commands.Drain, "host1")[0]))
        self.assertEqual("SHUTOFF", self._show_server(self.server)["status"])
        self.assertEqual({"host2": 1}, self.allocated(self.server))

    def test_applied_and_refused(self) -> None:
        make = moves.make

        def late(*args: Any) -> None:
            service = self.computes["host2"].service_ref.uuid
            self.admin_api.put_service(service, {"status": "disabled"})
            make(*args)

        with mock.patch.object(moves, "make", late):
            said = str(self.assertRaises(moves.Stopped, self.apply, move_commands.Drain, "host1"))
        self.assertRegex(
            said, r"^step 1 of 1, yields .*No ?[Vv]alid ?[Hh]ost.*\. No step is made, and "
        )
        self.assertGPUs(self.server, [base.FIRST_SOCKET[0]], "host1")

    def test_killed_at_any_moment(self) -> None:
        """What is left is said, and led to its end by the next plan, or by what that names."""
        with mock.patch.object(_proxy.Proxy, "migrate_server", killed.kill):
            self.assertRaises(killed.Killed, self.apply, move_commands.Drain, "host1")
        self.assertGPUs(self.server, [base.FIRST_SOCKET[0]], "host1")
        with mock.patch.object(moves._Step, "_when_idle", killed.kill):
            self.assertRaises(killed.Killed, self.apply, move_commands.Drain, "host1")
        self._wait_for_state_change(self.server, "VERIFY_RESIZE")
        said = self.refusal(move_commands.Drain, "host1")
        self.assertIn(
            "yields stays: its move or resize waits for openstack server migration confirm", said
        )
        self.perform(self.server, "revertResize", "ACTIVE")
        self.assertGPUs(self.server, [base.FIRST_SOCKET[0]], "host1")
        with mock.patch.object(moves._Step, "wait_for_source", killed.kill):
            self.assertRaises(killed.Killed, self.apply, move_commands.Drain, "host1")
        self.assertGPUs(self.server, [base.FIRST_SOCKET[0]], "host2")
        self.assertEqual([], self.apply(move_commands.Drain, "host1")[0])

    def listed(self) -> str:
        (found,) = [row[1] for row in self.values(providers.ListHosts) if row[0] == "host1"]
        return str(found)

    def test_drained_until_that_is_undone(self) -> None:
        _, said = self.apply(move_commands.Drain, "host1")
        self.assertIn(
            "host1: no new instance gets GPUs of it, until openstack gpu drain host1 --undo\n", said
        )
        one = self.gpu_flavor(1)
        reason = "it is drained"
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
        self.assertEqual([], self.values(move_commands.MakePlace, one))

        self.assertEqual([], self.values(move_commands.Drain, "host1", "--undo"))
        self.assertEqual("up", self.listed())
        self.boot(one, host="host1")
        refusal = self.refusal(move_commands.Drain, "host1", "--undo", "--apply")
        self.assertIn("give only one", refusal)
        self.assertIn("no host called x", self.refusal(move_commands.Drain, "x", "--undo"))
        self.assertIn(
            "no host with GPUs is called x", self.refusal(move_commands.Drain, "x", "--apply")
        )

    def test_drained_though_somebody_stays(self) -> None:
        firm = self.boot(self.gpu_flavor(1), host="host1", name="firm")
        said = str(
            self.assertRaises(exceptions.CommandError, self.apply, move_commands.Drain, "host1")
        )
        self.assertIn("firm stays", said)
        self.assertEqual("it is drained", self.listed())
        # What is there goes on.
        self._stop_server(firm)
        self._start_server(firm)
        self.assertGPUs(firm, self.recorded(firm))

    def test_who_stays(self) -> None:
        firm = self.flavor(gpus="= 1", gpu_arch="s== fermi")
        stays = self.boot(firm, host="host1", name="firm")
        said = self.refusal(move_commands.MakePlace, "eight")
        self.assertIn("no moves make room for 1 of eight; there is room for 0 now", said)
        self.assertIn("firm stays: it runs, and its flavor does not say gpu:move cold", said)
        self.assertIn("firm stays", self.refusal(move_commands.Drain, "host1"))
        self.assertEqual([], self.values(move_commands.Defragment))
        self._stop_server(stays)
        self.assertIn("firm stays: it is a container", self.refusal(move_commands.Drain, "host1"))
        self._delete_server(stays)

        self._stop_server(self.server)
        ((*_, cost, _),) = self.values(move_commands.MakePlace, "eight")
        self.assertEqual("none: it is stopped, and moves cold", cost)
        self.admin_api.post_server_action(self.server["id"], {"lock": {}})
        self.assertIn("yields stays: it is locked", self.refusal(move_commands.Drain, "host1"))

    def test_host_that_is_disabled_or_down(self) -> None:
        service = self.computes["host1"].service_ref.uuid
        self.admin_api.put_service(service, {"status": "disabled"})
        ((_, _, name, *_),) = self.values(move_commands.Drain, "host1")
        self.assertEqual("yields", name)
        self.force_down("host1")
        said = "yields stays: its host's compute service is down"
        self.assertIn(said, self.refusal(move_commands.Drain, "host1"))
        self.admin_api.put_service(service, {"status": "enabled"})
        self.assertIn(said, self.refusal(move_commands.Drain, "host1"))

    def test_refusals(self) -> None:
        self.assertIn("Nova: No Flavor", self.refusal(move_commands.MakePlace, "none"))
        self.assertIn(
            "no host with GPUs is called host3", self.refusal(move_commands.Drain, "host3")
        )
        near = self.flavor(**{"gpus": "2", "gpu:topology": "numa"})
        self.assertIn("requires gpu:topology numa", self.refusal(move_commands.MakePlace, near))
        one = self.flavor(**{"gpus": "1", "gpu:topology": "numa"})
        self.assertEqual([], self.values(move_commands.MakePlace, one))
        both = self.flavor(gpus="1", vgpus="1")
        self.assertIn("whole GPUs and for vGPUs", self.refusal(move_commands.MakePlace, both))
        for command, *arguments in (
            (move_commands.MakePlace, "eight"),
            (move_commands.Drain, "host1"),
            (move_commands.Defragment, "--flavor", "eight"),
        ):
            refused = self.refusal(command, *arguments, admin=False)
            self.assertIn("for administrators", refused)


def _killed_at(call: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """What does as *real* does, until it is called so often"""
    calls = itertools.count(1)

    def do(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == call:
            raise killed.Killed
        return real(*args, **kwargs)

    return do


class LiveTest(live.Moving, divided.DividedServersTestBase):
    """Guests with vGPUs, of two cards a host"""

    def test_moves_as_it_runs(self) -> None:
        self.start_host("host1")
        self.start_host("host2")
        server = self.boot(self.of_type(64), host="host1", name="goes-on")
        taken, said = sdk.run(self, move_commands.Drain, "host1")
        ((_, uuid, _, source, destination, _, cost, command),) = taken[1]
        self.assertEqual("host1: empty after 1 move.\n", said)
        self.assertEqual((server["id"], "host1", "host2"), (uuid, source, destination))
        self.assertEqual("it moves live, and goes on", cost)
        self.assertIn("server migrate --live-migration --host host2", command)
        self.live_migrate(server, "host2")
        self.assertEqual({"host2": 1}, self.allocated(server, "VGPU"))
        taken, _ = sdk.run(self, move_commands.Drain, "host1")
        self.assertEqual([], list(taken[1]))

    def test_applied_and_killed_at_every_step(self) -> None:
        for number in (1, 2, 3):
            self.start_host(f"host{number}")
        flavor = self.of_type(64)
        servers = [self.boot(flavor, host="host1", name=name) for name in ("a", "b", "c")]
        self.useFixture(fixtures.MockPatchObject(rest, "POLL_S", 0.1))
        self.refusal = live.NO_STATE.format(divided.FIRST)
        said = str(self.assertRaises(moves.Stopped, self.drain))
        self.assertRegex(said, "step 1 of 3, [abc] .*: it is ACTIVE on host1: ")
        self.assertIn("run the command again for a new plan", said)
        self.refusal = None

        # Before Nova is asked, before it is seen to be done, before the next, and at the end
        for where, step, left in (
            ("make", 1, 3),
            ("_when_idle", 1, 2),
            ("make", 2, 1),
            ("wait_for_source", 1, 0),
        ):
            with mock.patch.object(
                moves._Step, where, _killed_at(step, getattr(moves._Step, where))
            ):
                self.assertRaises(killed.Killed, self.drain)
            for server in servers:
                self._wait_for_state_change(server, "ACTIVE")  # Nova goes on with what was begun
            self._wait_for_assert(self.assertNoneKept)
            hosts = [self.allocated(server, "VGPU") for server in servers]
            self.assertEqual(left, hosts.count({"host1": 1}), hosts)
            self.assertEqual(3, sum(sum(each.values()) for each in hosts), hosts)
        taken, said = self.drain()
        self.assertEqual([], list(taken[1]))
        self.assertIn("host1: no instance has GPUs of it.", said)

    def assertNoneKept(self) -> None:
        """A source has its own back a moment after its guest is ACTIVE elsewhere."""
        for each in sdk.connect(self).compute.migrations():
            kept = self.placement.get(f"/allocations/{each.uuid}").body["allocations"]
            self.assertEqual({}, kept)

    def drain(self) -> Any:
        return sdk.run(self, move_commands.Drain, "host1", "--apply")
