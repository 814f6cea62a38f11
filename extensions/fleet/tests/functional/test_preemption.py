# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu preempt`` and what Nova does of it, on a host full of preemptible instances."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

from osc_lib import exceptions

from osc_gpu import capacity
from osc_gpu_fleet import create, move_commands, preemption_candidates, retries, start
from tests.functional import base, preempting, reported, sdk


class PreemptionTest(preempting.Preempting):
    def test_place_for_a_flavor(self) -> None:
        fault = self.boot_refused(self.two)
        self.assertIn("Scheduling failed: ", fault)
        named = "two", "--project", self.api.project_id
        ((_, now, *_, then),) = sdk.run(self, capacity.ShowCapacity, *named)[0][1]
        self.assertEqual((0, 2), (now, then))  # 4 of the 8 GPUs are of who may be taken
        names, output = self.run_it("two")
        self.assertEqual(["stopped"], names)
        self.assertIn(
            "1 of two: room for 0 now; for 1 after 1 instance is preempted. No smaller", output
        )
        self.assertUntouched(self.firm, self.three, self.one, self.young)

        seen = []
        end = preemption_candidates.end

        def looked_at(*args: Any) -> None:
            seen.append(self.in_guest(self.three).get("gpu:preempt_at"))
            end(*args)

        with mock.patch.object(preemption_candidates, "end", looked_at):
            names, output = self.apply("two")
        self.assertEqual(["stopped"], names)
        (due,) = seen
        who = f"stopped ({self.three['id']}) of project {self.api.project_id}, 3 GPUs on host1"
        self.assertIn(f"{who}: told that it is stopped at {due}, for 1 of two\n", output)
        self.assertIn(f"{who}: stopped now, for 1 of two\n", output)
        self.assertEqual("SHUTOFF", self.status(self.three))
        self.assertEqual(["1 of two"], self.takers(self.three))
        self.assertEqual({}, self.allocated(self.three))
        self.assertDone("stop", self.three)
        self.assertUntouched(self.one, self.young)
        # Who asks again gets it, nobody who is preemptible does, and nobody else has to go.
        self.assertEqual(([], []), (self.apply("two")[0], self.apply()[0]))
        self.assertRegex(self.listed(), "^up; no preemptible instance until 2[0-9T:-]+Z$")
        spot = self.flavor(gpus="= 1", **preempting.STOPPED)
        fault = self.boot_refused(spot)
        self.assertIn("only on hosts that keep them from preemptible instances now", fault)
        (message,) = self.refused({"os-start": None}, self.three)
        self.assertIn("instances that are not preemptible, for now; start it when", message)
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
        message = self.refusal("two", "--apply")
        self.assertIn(
            "no preemptible instances make room for 1 of two; there is room for 0", message
        )
        self.assertRegex(
            message, "young stays: it has had its GPUs for [0-9]+ s, and keeps them 3600 s"
        )

    def test_place_on_hosts_of_other_releases(self) -> None:
        for name, change in reported.READABLE.items():
            with self.subTest(name):
                self.assertEqual(["stopped"], self.apply("two")[0])
                self.refused({"os-start": None}, self.three)
                reported.report_as(self, "host1", change)
                self._delete_server(self.boot(self.two))
                self.undo()
                self._start_server(self.three)
        self.assertUntouched(self.firm, self.one, self.young)

    def test_place_for_those_who_found_none(self) -> None:
        self.assertIn("no request waits for GPUs", self.apply()[1])
        refused = self.boot(self.two, expected_state="ERROR", name="wants")
        self.boot_refused(self.flavor(gpus="= 2", **preempting.DELETED))
        self.boot_refused(self.gpu_flavor(9))
        names, output = self.apply()
        self.assertEqual(["stopped"], names)
        asker = f"wants ({refused['id']}) of project {self.api.project_id}"
        self.assertIn(f": stopped now, for two, asked for by {asker}\n", output)
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


class WaitingTest(preempting.Preempting):
    """Who waits, as in a real cloud, where Nova answers before a host does"""

    CAST_AS_CALL = False

    def test_the_request_waits(self) -> None:
        taken = []

        def meanwhile(seconds: float) -> None:
            if seconds == 7:
                taken.append(self.apply()[0])
            time.sleep(0.1)

        clock = SimpleNamespace(sleep=meanwhile, monotonic=time.monotonic)
        with mock.patch.object(create, "time", clock), mock.patch.object(retries, "time", clock):
            waits = "--every", "7", "--flavor", "two", "--image", base.IMAGE, "waits"
            (columns, values), output = sdk.run(self, create.CreateServer, *waits, admin=False)
        self.assertEqual([["stopped"]], taken)
        self.assertRegex(
            output, "^waits: it waits: No valid host was found. Scheduling failed: .+\n$"
        )
        shown = dict(zip(columns, values, strict=True))
        self.assertEqual("ACTIVE", shown["status"])
        # Nothing is left of the one before.
        named = [server["id"] for server in self.api.get_servers() if server["name"] == "waits"]
        self.assertEqual([shown["id"]], named)
        self.assertEqual({"host1": 2}, self.allocated(shown))
        spot = self.flavor(gpus="= 1", **preempting.STOPPED)
        refusal = self.assertRaises(
            exceptions.CommandError, sdk.run, self, move_commands.MakeRoom, spot
        )
        self.assertIn("there is room for 0 now", str(refusal))  # as the host's are kept

        # It gives them back, others have them meanwhile, and its start waits as well.
        self._stop_server(shown)
        self.boot(self.gpu_flavor(2))
        with mock.patch.object(start, "time", clock), mock.patch.object(retries, "time", clock):
            waits = shown["id"], "--for", "60", "--every", "7"
            _, output = sdk.run(self, start.StartServer, *waits)
        self.assertIn("waits: starting it\nit waits: waits is SHUTOFF: ", output)
        self.assertEqual(["gone"], taken[1])
        self.assertEqual({"host1": 2}, self.allocated(shown))
        self._shelve_server(shown, expected_state="SHELVED_OFFLOADED")
        self.boot(self.gpu_flavor(2))
        self.api.post_server_action(shown["id"], {"unshelve": None})
        self._wait_for_server_parameter(shown, {"OS-EXT-STS:task_state": None})
        asks = f"two, asked for by waits ({shown['id']}) of project {self.api.project_id}"
        self.assertIn(f"{asks}: room for 0 now, and no preemptible", self.run_it()[1])
