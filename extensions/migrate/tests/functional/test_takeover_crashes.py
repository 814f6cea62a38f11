# SPDX-License-Identifier: Apache-2.0
"""``nova-gpu adopt`` and ``leave`` are killed at any of their writes, and users go on meanwhile.

No card is of two instances, none is lost, and none goes on to another instance of nova-gpu, or to
stock Nova, uncleaned. Killed anywhere, a command goes on, or the other one goes back. How many
deaths it are is in the environment, and so is the seed; ``python -m tests.crash --takeovers 1000``
is the long run.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
from collections.abc import Callable, Collection, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

from nova.tests.functional.api import client as api_client
from testtools import content, content_type

from nova_gpu.cmd import services, waiting
from nova_gpu.conf import CONF
from nova_gpu.core import exception, names
from nova_gpu_migrate.cmd import adopt, leave
from nova_gpu_migrate.cmd import shadow as shadow_command
from tests.fixtures import economy, mediated
from tests.functional import NOVA, held, held_mediated, outside
from tests.functional.base import Server

POINTS, SEED = "NOVA_GPU_TAKEOVERS", "NOVA_GPU_SEED"
_COMMANDS = {"adopt": adopt.run, "leave": leave.run}
# What changes libvirt's definitions of mediated devices
_DEFINITIONS = (
    (mediated.Devices, "define"),
    (mediated.Device, "undefine"),
    (mediated.Device, "setAutostart"),
)
_OTHER = {"adopt": "leave", "leave": "adopt"}
_SETTLED = ("ACTIVE", "SHUTOFF", "VERIFY_RESIZE", "SHELVED_OFFLOADED", "ERROR")
_MOVES = ("resize", "confirm", "revert", "shelve", "unshelve")
_ASKED = (
    *("boot stock", "boot own", "reboot", "reboot", "stop", "start", "resize"),
    *_MOVES,
    *("delete", "live"),
)
_OWN = {names.GPUS, names.VGPUS}
_QUIET_S = 30.0


class Crashing(held.HeldTestBase):
    """An instance with two GPUs, one with a GPU and something else of Nova's, and a free GPU.

    ``FIRST`` is the command that is killed first, ``PLACES`` about as many as it passes
    (:class:`tests.functional.outside.Outside`), ``SOME`` the deaths if the environment names no
    number.
    """

    CAST_AS_CALL = False
    FIRST: ClassVar[str]
    REPORTED: ClassVar[bool] = False
    PLACES: ClassVar[int]
    SOME: ClassVar[int] = 0

    def setUp(self) -> None:
        if NOVA < 34:
            self.skipTest("Nova before 2026.2 runs on eventlet, and no test sees when it is idle")
        self.history: list[str] = []
        self.is_up, self.is_stock = True, self.FIRST == "adopt"
        self.flags(report_in_placement=self.REPORTED, group="pci")
        super().setUp()
        self.flags(pci_in_placement=self.REPORTED, group="filter_scheduler")
        self.flags(allow_resize_to_same_host=True, report_interval=0, shelved_offload_time=0)
        self.start_host()
        is_stock = self.is_stock
        self.first = {}
        for count, and_more in ((2, False), (1, True)):
            words = self.words(count, is_stock=is_stock, and_more=and_more)
            server = self.boot(self.flavor(**words))
            self.first[server["id"]] = self.own[server["id"]] = self.gpus_of(server)
        stock, own = (self.words(1, is_stock=by_stock) for by_stock in (True, False))
        self.small = {"boot stock": self.flavor(**stock), "boot own": self.flavor(**own)}
        self.large_stock, self.large_own = (
            self._create_flavor(memory_mb=256, vcpu=1, disk=1, ephemeral=0, extra_spec=words)
            for words in (stock, own)
        )

    def point(self, number: int, of: int, seed: int) -> None:
        """Kill commands, the first one at a place of its own, and let life go on in between."""
        self.chance = random.Random(f"{seed} {number}")
        self.addDetail("history", content.Content(content_type.UTF8_TEXT, self._told))
        self.note(f"{type(self).__name__} {number} of {of}, seed {seed}")
        if self.chance.random() < 0.25:
            self.ask_something()
            self.settle()
        self.run_command(self.FIRST, 1 + (seed + number * max(1, self.PLACES // of)) % self.PLACES)
        for _ in range(self.chance.choice((0, 1, 1))):
            self.live()
            command = self.FIRST if self.chance.random() < 0.7 else _OTHER[self.FIRST]
            self.run_command(command, self.chance.randint(1, self.PLACES))
        self.live()
        self.end(self.FIRST if self.chance.random() < 0.75 else _OTHER[self.FIRST])

    def note(self, text: str) -> None:
        self.history.append(text)

    def _told(self) -> Iterator[bytes]:
        yield "\n".join(self.history).encode()

    # The commands

    def run_command(self, command: str, place: int | None = None) -> int | None:
        """Run *command*; at its *place* it is killed, or somebody else comes in between.

        Return its exit status, ``None`` if it was killed.
        """
        self.stop()
        way = self.chance.choice(("kill", "kill", "kill", "kill", "ask", "again")) if place else ""
        act = {"ask": self.ask_something, "again": lambda: self._work(command)}.get(way)
        places = outside.Outside(place, act or outside.kill)
        self.take_options(is_stock=command == "leave")
        output = io.StringIO()
        status, was_refused = None, False
        with (
            self._as_command(places),
            places.watched(),
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
        ):
            status, was_refused = self._work(command)
        # One that refuses has changed nothing, and nova-compute gets the options that it had.
        if not was_refused or places.passed:
            self.is_stock = command == "leave" and status == 0
        reasons = [line for line in output.getvalue().splitlines() if line.startswith("nova-gpu")]
        self.note(f"{command}: {way} {places.done_at}, status {status} {' '.join(reasons)}")
        if command == "leave" and status == 0:
            self.expect_free_are_clean()
        self.check()
        return status

    def _work(self, command: str) -> tuple[int, bool]:
        """Return the command's exit status, and whether it has refused to begin or to go on."""
        try:
            words = SimpleNamespace(
                instances=[], aliases=[], apply=True, with_gpufilter=True, shelved=False
            )
            return _COMMANDS[command](words, []), False
        except exception.GPUError as error:
            print(f"nova-gpu: {error}")
            return 1, True

    @contextlib.contextmanager
    def _as_command(self, places: outside.Outside) -> Iterator[None]:
        """While this lasts, the commands of this package are on host1."""

        def read(line: list[str], preferred: Collection[str] = ()) -> Any:
            with self.reading("host1") as sources:
                report = shadow_command.look(sources, preferred)
                self.assertEqual((), report.unread)
            places.over(sources.placement)
            return sources, report

        libvirt = self.computes["host1"].driver._host
        self._point_options_at("host1")
        with (
            self.on("host1"),
            self._state_of("host1"),
            mock.patch.object(shadow_command, "read", read),
            mock.patch.object(services, "libvirt", lambda **kwargs: libvirt),
            mock.patch.object(waiting, "shown", lambda text: contextlib.nullcontext()),
        ):
            yield

    def end(self, command: str) -> None:
        """Run *command* to its end, and look at what has become of everything."""
        for _ in range(4):
            # Where nothing is to be given back, leave refuses for a card of stock Nova's guests.
            if self.run_command(command) == 0 or (command == "leave" and self.is_stock):
                break
            # Something is in the way until nova-compute has done what it was asked for.
            self.start()
            for server in self.servers():
                if server["status"] == "VERIFY_RESIZE":
                    self.ask(self.chance.choice(("confirm", "revert")), server)
            self.settle()
            self.mend()
        else:
            self.fail("it does not come to its end")
        self.start()
        self.period()
        for server in self.servers():
            if server["status"] == "ACTIVE":
                self.ask("reboot", server)
        self.settle()
        self.period()
        self.check()
        self.check_end()

    def mend(self) -> None:
        """Do what the command has named as remedy for instances that lack what they ask for."""

    # nova-compute

    def stop(self) -> None:
        if self.is_up:
            self.computes["host1"].stop()
            self.is_up = False

    def start(self) -> None:
        self.stop()
        economy.wait_for_quiet(_QUIET_S)
        self.take_options()
        self.note(f"start nova-compute, {CONF.compute_driver}")
        self.restart_host("host1")
        self.is_up = True
        self.settle()

    # What happens meanwhile

    def live(self) -> None:
        """Let something happen: while nova-compute is down, while it is up, or both."""
        if self.chance.random() < 0.3:
            self.ask_something()
            self.check()
        if self.chance.random() < 0.7:
            self.start()
            self.period()
            for _ in range(self.chance.choice((0, 1, 1, 2))):
                self.ask_something()
                self.settle()
                if self.chance.random() < 0.5:
                    self.period()
                    self.check()

    def ask_something(self) -> None:
        what = self.chance.choice(_ASKED)
        if flavor := self.small.get(what):
            self.note(what)
            request = self._build_server(flavor_id=flavor, networks="none")
            self.api.post_server({"server": request})
            return
        servers = self.servers()
        # Nova counts a device for the instance and for the migration that waits, and nova-compute,
        # where Placement refuses that, does not start. It gives a resize another free card than
        # Placement has counted, if there is one, and never puts that right.
        if what == "resize" and self.REPORTED and (not self.is_up or self.are_several_free()):
            servers = [server for server in servers if names.PCI_ALIAS not in _words(server)]
        if servers:
            self.ask(what, self.chance.choice(servers))

    def ask(self, what: str, server: Server) -> None:
        """Ask for it; the API may refuse."""
        uuid, larger = (
            server["id"],
            self.large_own if _OWN & _words(server).keys() else self.large_stock,
        )
        actions: dict[str, dict[str, Any]] = {
            "reboot": {"reboot": {"type": "HARD"}},
            "stop": {"os-stop": None},
            "start": {"os-start": None},
            "resize": {"resize": {"flavorRef": larger}},
            "confirm": {"confirmResize": None},
            "revert": {"revertResize": None},
            "shelve": {"shelve": None},
            "unshelve": {"unshelve": None},
            "live": {"os-migrateLive": {"host": None, "block_migration": "auto"}},
        }
        self.note(f"{what} {uuid}, {server['status']}")
        try:
            if what == "delete":
                self.api.delete_server(uuid)
            else:
                self.api.post_server_action(uuid, actions[what])
        except api_client.OpenStackApiException as error:
            self.assertIn(error.response.status_code, (400, 409), error)
            self.note("    refused")
            return
        if what in _MOVES:
            self.own.pop(uuid, None)  # other cards may be its own afterwards

    def settle(self) -> None:
        """Wait until nova-compute has done what it was asked for."""

        def settled() -> list[Server]:
            servers = self._servers()
            for server in servers:
                self.assertIn(server["status"], _SETTLED)
                if server["status"] != "ERROR":
                    self.assertIsNone(server["OS-EXT-STS:task_state"], server["status"])
            return servers

        servers = self._wait_for_assert(settled)
        economy.wait_for_quiet(_QUIET_S)  # it has its state before the host has forgotten it
        for server in servers:
            if server["status"] == "ERROR":
                self._recover(server)
        self.check()

    def _recover(self, server: Server) -> None:
        """Do with an instance in ERROR what an operator does."""
        uuid, fault = server["id"], server.get("fault", {}).get("message", "")
        self.note(f"{uuid} is in ERROR: {fault}")
        if uuid not in self.first:
            self.api.delete_server(uuid)
            economy.wait_for_quiet(_QUIET_S)
            return
        # So Nova leaves an instance that has found no room in a resize, or whose allocations have
        # changed while its move began.
        moves = tuple(f"{move} {uuid}" for move in ("resize", "live"))
        self.assertTrue([text for text in self.history if text.startswith(moves)])
        self.failed.add(uuid)
        self.api.post_server_action(uuid, {"os-resetState": {"state": "active"}})

    def servers(self) -> list[Server]:
        """Return the instances that no task is under way for, the oldest first."""
        servers = [server for server in self._servers() if server["OS-EXT-STS:task_state"] is None]
        order = list(self.first)
        return sorted(
            servers, key=lambda server: (server["id"] not in order, server["created"], server["id"])
        )


def _words(server: Server) -> dict[str, str]:
    words: dict[str, str] = server["flavor"]["extra_specs"]
    return words


class Cards(Crashing, held.HeldCardsTestBase):
    """The instances have whole cards; the second one has a network function by an alias."""


class AdoptTest(Cards):
    FIRST = "adopt"
    PLACES = 43


class ReportedAdoptTest(Cards):
    FIRST = "adopt"
    REPORTED = True
    PLACES = 59
    SOME = 1


class LeaveTest(Cards):
    FIRST = "leave"
    PLACES = 36
    SOME = 1


class ReportedLeaveTest(Cards):
    FIRST = "leave"
    REPORTED = True
    PLACES = 38


class Mediated(Crashing, held_mediated.HeldMediatedTestBase):
    """The instances have mediated devices of one type."""

    @contextlib.contextmanager
    def _as_command(self, places: outside.Outside) -> Iterator[None]:
        with super()._as_command(places), contextlib.ExitStack() as stack:
            for owner, name in _DEFINITIONS:
                call = places.around(f"libvirt's {name}", getattr(owner, name))
                stack.enter_context(mock.patch.object(owner, name, call))
            yield

    def mend(self) -> None:
        for action in ("shelve", "unshelve"):
            devices = self.by_domain()
            for server in self.servers():
                asks = "resources:VGPU" in _words(server) and not self.recorded(server)
                if asks and not devices.get(server["id"]) and not self.is_stock:
                    self.ask(action, server)
            self.settle()


class MediatedAdoptTest(Mediated):
    FIRST = "adopt"
    PLACES = 29
    SOME = 1


class MediatedLeaveTest(Mediated):
    FIRST = "leave"
    PLACES = 39
    SOME = 1


_CASES: tuple[type[Crashing], ...] = (
    *(AdoptTest, ReportedAdoptTest, LeaveTest, ReportedLeaveTest),
    *(MediatedAdoptTest, MediatedLeaveTest),
)


def _point(number: int, of: int, seed: int) -> Callable[[Crashing], None]:
    return lambda case: case.point(number, of, seed)


def _add_tests() -> None:
    """Give each class a test for each of its points, of which each is a fork of its own."""
    seed = int(os.environ.get(SEED, "0"))
    for case in _CASES:
        of = int(os.environ.get(POINTS, "0")) // len(_CASES) or case.SOME
        for number in range(of):
            setattr(case, f"test_point_{number:04}", _point(number, of, seed))


_add_tests()
