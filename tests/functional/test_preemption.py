# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu preempt`` and what Nova does of it, on a host full of preemptible instances."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fixtures
from nova import context as nova_context
from nova import objects
from nova.api.metadata import base as metadata
from openstack.compute.v2 import _proxy
from osc_lib import exceptions

from osc_gpu import capacity, explain, providers, rest
from osc_gpu.fleet import create, move_commands, preemption, preemption_candidates, start
from tests.functional import base, killed, sdk
from tests.functional.readings import Server

STOPPED = {"gpu:preemptible": "0s", "gpu:on_stop": "release"}
DELETED = {"gpu:preemptible": "0s", "gpu:on_preempt": "delete"}


class Preempting(base.GPUServersTestBase):
    """A host that is full, half of it of who may be taken"""

    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        for module in (preemption, rest):
            self.useFixture(fixtures.MockPatchObject(module, "POLL_S", 0.1))
        self.useFixture(fixtures.MockPatchObject(preemption, "_SHORT_S", 0.1))
        self.two = self.flavor("two", **{"gpus": "= 2", "gpu:on_stop": "release"})
        self.three = self.boot(self.flavor(gpus="= 3", **STOPPED), name="stopped")
        self.one = self.boot(self.flavor(gpus="= 1", **DELETED), name="gone")
        hour = {**STOPPED, "gpu:preemptible": "1h"}
        self.young = self.boot(self.flavor(gpus="= 2", **hour), name="young")
        self.firm = self.boot(self.gpu_flavor(2))

    def run_it(self, *arguments: str, project: str = "") -> tuple[list[Any], str]:
        """The names of the table, and what is said beside it"""
        project = project or self.api.project_id
        taken, said = sdk.run(self, preemption.Preempt, *arguments, "--project", project)
        return [row[1] for row in taken[1]], said

    def apply(self, *arguments: str) -> tuple[list[Any], str]:
        return self.run_it(*arguments, "--apply", "--notice", "1")

    def refusal(self, *arguments: str, **more: str) -> str:
        refused = self.assertRaises(exceptions.CommandError, self.run_it, *arguments, **more)
        return str(refused)

    def plain_refusal(self, *arguments: str, admin: bool = True) -> str:
        command = sdk.run, self, preemption.Preempt, *arguments
        return str(self.assertRaises(exceptions.CommandError, *command, admin=admin))

    def in_guest(self, server: Server) -> dict[str, str]:
        """What the guest reads of the metadata service about itself"""
        context = nova_context.get_admin_context()
        mapping = objects.InstanceMapping.get_by_instance_uuid(context, server["id"])
        with nova_context.target_cell(context, mapping.cell_mapping) as cell:
            attributes = ["metadata", "system_metadata", "ec2_ids", "flavor", "info_cache"]
            instance = objects.Instance.get_by_uuid(cell, server["id"], [*attributes, "keypairs"])
            shown = metadata.InstanceMetadata(instance)
            return dict(
                json.loads(shown.lookup("/openstack/latest/meta_data.json")).get("meta", {})
            )

    def listed(self) -> str:
        """As ``openstack gpu host list`` has it"""
        ((_, state, *_),) = sdk.run(self, providers.ListHosts)[0][1]
        return str(state)

    def undo(self) -> None:
        _, said = sdk.run(self, preemption.Preempt, "--undo")
        self.assertEqual("all hosts are open to preemptible instances\n", said)

    def takers(self, server: Server, *, admin: bool = True) -> list[str]:
        """Who has taken its GPUs, as ``openstack gpu explain`` has it"""
        command = explain.ExplainServer, "-f", "json", server["id"]
        _, shown, _ = sdk.shown(self, *command, admin=admin)
        when, *takers = json.loads(shown)["preempted"]
        self.assertRegex(when, "^told that its GPUs are taken at 2[0-9T:-]+Z, for$")
        return takers

    def takers_and_shown(self, server: Server) -> tuple[list[str], list[str]]:
        """As an administrator reads it, and as its user does"""
        return self.takers(server), self.takers(server, admin=False)

    def status(self, server: Server) -> str:
        return str(self._show_server(server)["status"])

    def assertDone(self, action: str, server: Server) -> None:
        """As ``openstack server event list`` shows afterwards, to an administrator, of who is gone
        as well"""
        actions = sdk.connect(self).compute.server_actions(server["id"])
        (done,) = [each.user_id for each in actions if each.action == action]
        self.assertEqual("admin", done)

    def assertUntouched(self, *servers: Server) -> None:
        for server in servers:
            self.assertEqual("ACTIVE", self.status(server))
            self.assertNotIn("gpu:preempt_at", self.in_guest(server))


class PreemptionTest(Preempting):
    def test_place_for_a_flavor(self) -> None:
        fault = self.boot_refused(self.two)
        self.assertIn("Scheduling failed: ", fault)
        named = "two", "--project", self.api.project_id
        ((_, now, *_, then),) = sdk.run(self, capacity.ShowCapacity, *named)[0][1]
        self.assertEqual((0, 2), (now, then))  # 4 of the 8 GPUs are of who may be taken
        names, said = self.run_it("two")
        self.assertEqual(["stopped"], names)
        self.assertIn("1 of two: room for 0 now; for 1 without 1 instance. No fewer", said)
        self.assertUntouched(self.firm, self.three, self.one, self.young)

        seen = []
        end = preemption_candidates.end

        def looked_at(*args: Any) -> None:
            seen.append(self.in_guest(self.three).get("gpu:preempt_at"))
            end(*args)

        with mock.patch.object(preemption_candidates, "end", looked_at):
            names, said = self.apply("two")
        self.assertEqual(["stopped"], names)
        (due,) = seen
        who = f"stopped ({self.three['id']}) of project {self.api.project_id}, 3 GPUs on host1"
        self.assertIn(f"{who}: told that it is stopped at {due}, for 1 of two\n", said)
        self.assertIn(f"{who}: stopped now, for 1 of two\n", said)
        self.assertEqual("SHUTOFF", self.status(self.three))
        self.assertEqual(["1 of two"], self.takers(self.three))
        self.assertEqual({}, self.allocated(self.three))
        self.assertDone("stop", self.three)
        self.assertUntouched(self.one, self.young)
        # Who asks again gets it, nobody who is preemptible does, and nobody else has to go.
        self.assertEqual(([], []), (self.apply("two")[0], self.apply()[0]))
        self.assertRegex(self.listed(), "^up; no preemptible instance until 2[0-9T:-]+Z$")
        spot = self.flavor(gpus="= 1", **STOPPED)
        fault = self.boot_refused(spot)
        self.assertIn("only on hosts that keep them from preemptible instances now", fault)
        (said,) = self.refused({"os-start": None}, self.three)
        self.assertIn("instances that are not preemptible, for now; start it when", said)
        self.boot(self.two)
        self.undo()
        self.assertEqual("up", self.listed())
        # What is left serves one GPU; the next is deleted.
        self.assertEqual([], self.apply(self.gpu_flavor(1))[0])
        names, _ = self.apply("two")
        self.assertEqual(["gone"], names)
        self._wait_until_deleted(self.one)
        self.assertDone("delete", self.one)
        self.assertUntouched(self.young)
        self.assertEqual({"host1": 2}, self.allocated(self.boot(self.two)))
        said = self.refusal("two", "--apply")
        self.assertIn("no preemptible instances make room for 1 of two; there is room for 0", said)
        self.assertRegex(
            said, "young stays: it has had its GPUs for [0-9]+ s, and keeps them 3600 s"
        )

    def test_place_for_those_who_found_none(self) -> None:
        self.assertIn("no request waits for GPUs", self.apply()[1])
        refused = self.boot(self.two, expected_state="ERROR", name="wants")
        self.boot_refused(self.flavor(gpus="= 2", **DELETED))
        self.boot_refused(self.gpu_flavor(9))
        names, said = self.apply()
        self.assertEqual(["stopped"], names)
        asker = f"wants ({refused['id']}) of project {self.api.project_id}"
        self.assertIn(f": stopped now, for two, asked for by {asker}\n", said)
        self.assertEqual(([asker], [refused["id"]]), self.takers_and_shown(self.three))
        self.assertUntouched(self.one, self.young)
        # Once for each request: it has its place, until it has it.
        self.assertEqual([], self.apply()[0])
        self.boot(self.two, name="again")
        self.api.delete_server(refused["id"])
        self.assertEqual(([asker], [refused["id"]]), self.takers_and_shown(self.three))
        self.assertEqual([], self.apply()[0])
        self.assertNotIn("two, asked for by", self.apply()[1])
        self.assertUntouched(self.one, self.young)

    def test_who_is_no_victim(self) -> None:
        said = self.refusal("two", project="another")
        left = f"its project {self.api.project_id} is not one that --project names"
        self.assertIn(f"stopped stays: {left}", said)
        self.admin_api.post_server_action(self.three["id"], {"lock": {}})
        self.assertIn("stopped stays: it is locked", self.refusal("two"))
        self.admin_api.post_server_action(self.three["id"], {"unlock": None})
        self.perform(self.three, "pause", "PAUSED")
        self.assertIn("stopped stays: its status is PAUSED", self.refusal("two"))
        self.perform(self.three, "unpause", "ACTIVE")
        self.force_down("host1")
        self.assertIn("stopped stays: its host's compute service is down", self.refusal("two"))
        spot = self.flavor("spot", gpus="= 2", **DELETED)
        self.assertIn("spot is preemptible itself", self.refusal(spot))
        self.assertIn("--watch goes with --apply", self.refusal("--watch", "1"))
        self.assertIn("--count goes with a flavor", self.refusal("--count", "2"))
        said = self.plain_refusal("two", "--project", self.api.project_id, admin=False)
        self.assertIn("for administrators", said)
        self.assertIn("name the --project", self.plain_refusal("two"))
        self.assertIn("--undo goes without a flavor", self.plain_refusal("two", "--undo"))
        self.assertIn("--since goes without a flavor", self.refusal("two", "--since", "60"))
        self.assertUntouched(self.one, self.young)

    def test_killed_at_any_moment(self) -> None:
        """The next run goes on, with no victim more."""
        with mock.patch.object(_proxy.Proxy, "set_server_metadata", killed.kill):
            self.assertRaises(killed.Killed, self.apply, "two")
        self.assertUntouched(self.firm, self.three, self.one, self.young)
        with mock.patch.object(preemption_candidates, "end", killed.kill):
            self.assertRaises(killed.Killed, self.apply, "two")
        due = self.in_guest(self.three)["gpu:preempt_at"]
        # It is told nothing else, and another is cheaper no more.
        with mock.patch.object(preemption_candidates, "_has_gpus", killed.kill):
            self.assertRaises(killed.Killed, self.run_it, "two", "--apply", "--notice", "60")
        self.assertEqual(due, self.in_guest(self.three)["gpu:preempt_at"])
        self.assertEqual([], self.apply("two")[0])
        self._wait_for_state_change(self.three, "SHUTOFF")
        self.assertUntouched(self.one, self.young)
        self.boot(self.two)
        # Started again it has been told nothing.
        self._delete_server(self.firm)
        self.undo()
        self._start_server(self.three)
        taken, _ = sdk.run(self, preemption.Preempt, "two", "--project", self.api.project_id)
        ((_, name, *_, due, _),) = taken[1]
        self.assertEqual(("stopped", ""), (name, due))

    def test_nobody_needs_it_any_more(self) -> None:
        tell = preemption_candidates.notify

        def told(*args: Any) -> None:
            tell(*args)
            self.assertIn("gpu:preempt_at", self.in_guest(self.three))
            self.period()
            self._delete_server(self.firm)

        with mock.patch.object(preemption_candidates, "notify", told):
            names, said = self.run_it("two", "--apply", "--notice", "600")
        self.assertEqual([], names)
        self.assertIn("3 GPUs on host1: told that it stays, as its GPUs are not needed now\n", said)
        self.firm = self.boot(self.two)
        self.assertUntouched(self.firm, self.three, self.one, self.young)

    def test_a_burst(self) -> None:
        """Each is served that asks until it is, by as many as it takes."""
        self._delete_server(self.firm)
        spots = self.flavor(gpus="= 1", **STOPPED)
        before, last = (self.boot(spots, name=name) for name in ("before", "last"))
        one = self.flavor("one", gpus="= 1")
        wanted = {"a": one, "b": one, "c": self.two}
        served: list[Server] = []
        refused = [
            self.boot(flavor, expected_state="ERROR", name=name) for name, flavor in wanted.items()
        ]

        def meanwhile(seconds: float) -> None:
            """What the users do"""
            if served:
                raise KeyboardInterrupt
            if not (self.allocated(self.three) or self.allocated(last)):
                for each in refused[:2]:
                    self.api.delete_server(each["id"])  # their quota is what the next need
                self.boot_refused(spots)  # who comes in between
                served.extend(self.boot(flavor, name=name) for name, flavor in wanted.items())

        clock = SimpleNamespace(sleep=meanwhile, monotonic=time.monotonic)
        with mock.patch.object(preemption, "time", clock):
            self.assertRaises(KeyboardInterrupt, self.apply, "--watch", "1")
        self.assertEqual(["SHUTOFF"] * 2, [self.status(each) for each in (self.three, last)])
        self.assertUntouched(self.one, self.young, before)
        self.assertEqual("up", self.listed())  # as all of it is taken
        owned = [self.recorded(each) for each in (*served, self.one, self.young, before)]
        self.assertEqual(8, len({card for each in owned for card in each}))
        self.assertEqual(8, sum(map(len, owned)))


class WaitingTest(Preempting):
    """Who waits, as in a real cloud, where Nova answers before a host does"""

    CAST_AS_CALL = False

    def test_the_request_waits(self) -> None:
        taken = []

        def meanwhile(seconds: float) -> None:
            if seconds == 7:
                taken.append(self.apply()[0])
            time.sleep(0.1)

        clock = SimpleNamespace(sleep=meanwhile, monotonic=time.monotonic)
        with mock.patch.object(create, "time", clock), mock.patch.object(rest, "time", clock):
            waits = "--every", "7", "--flavor", "two", "--image", base.IMAGE, "waits"
            (columns, values), said = sdk.run(self, create.CreateServer, *waits, admin=False)
        self.assertEqual([["stopped"]], taken)
        self.assertRegex(
            said, "^waits: it waits: No valid host was found. Scheduling failed: .+\n$"
        )
        shown = dict(zip(columns, values, strict=True))
        self.assertEqual("ACTIVE", shown["status"])
        # Nothing is left of the one before.
        named = [each["id"] for each in self.api.get_servers() if each["name"] == "waits"]
        self.assertEqual([shown["id"]], named)
        self.assertEqual({"host1": 2}, self.allocated(shown))
        spot = self.flavor(gpus="= 1", **STOPPED)
        refusal = self.assertRaises(
            exceptions.CommandError, sdk.run, self, move_commands.MakePlace, spot
        )
        self.assertIn("there is room for 0 now", str(refusal))  # as the host's are kept

        # It gives them back, others have them meanwhile, and its start waits as well.
        self._stop_server(shown)
        self.boot(self.gpu_flavor(2))
        with mock.patch.object(start, "time", clock), mock.patch.object(rest, "time", clock):
            waits = shown["id"], "--for", "60", "--every", "7"
            _, said = sdk.run(self, start.StartServer, *waits)
        self.assertIn("waits: starting it\nit waits: waits is SHUTOFF: ", said)
        self.assertEqual(["gone"], taken[1])
        self.assertEqual({"host1": 2}, self.allocated(shown))
        self._shelve_server(shown, expected_state="SHELVED_OFFLOADED")
        self.boot(self.gpu_flavor(2))
        self.api.post_server_action(shown["id"], {"unshelve": None})
        self._wait_for_server_parameter(shown, {"OS-EXT-STS:task_state": None})
        asks = f"two, asked for by waits ({shown['id']}) of project {self.api.project_id}"
        self.assertIn(f"{asks}: room for 0 now, and no preemptible", self.run_it()[1])
