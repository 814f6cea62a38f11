# SPDX-License-Identifier: Apache-2.0
"""What ``openstack gpu ...`` shows of hosts, groups, instances and flavors, and to whom."""

from __future__ import annotations

import json

from nova_gpu.core import exception
from osc_gpu import explain, flavor_check, flavors, group_list, host_list, servers, usage
from tests.fixtures import ailments
from tests.functional import base, sdk
from tests.functional.shown import ShownTestBase

_KEPLER = ("10de:1023", "tesla_k40m", "kepler", "lxc")
_FERMI = ("10de:1091", "tesla_m2090", "fermi", "lxc")


class HostsTest(ShownTestBase):
    def test_groups_hosts_and_who_has_what(self) -> None:
        two = self.boot(self.flavor(**base.BLUEPRINT), host="host1", name="pair")
        one = self.boot(self.flavor(gpus="1", gpu_arch="kepler"), name="single")
        ailments.silence(self.hosts["host1"], base.FIRST_SOCKET[0])
        ailments.silence(self.hosts["host1"], base.SECOND_SOCKET[0])
        self.period("host1")

        groups = [
            ("host1", *_FERMI, 8, 2, 1, 5),
            ("host2", *_KEPLER, 4, 1, 0, 3),
            ("host2", *_FERMI, 4, 0, 0, 4),
        ]
        self.assertEqual(groups, self.values(group_list.ListGroups))
        self.documented("group-list", group_list.ListGroups)
        self.assertEqual(groups[1:], self.values(group_list.ListGroups, "--host", "host2"))
        of_kepler = self.values(group_list.ListGroups, "--arch", "Kepler", "--free")
        self.assertEqual(groups[1:2], of_kepler)
        self.assertEqual(1, len(self.values(host_list.ListHosts, "--arch", "kepler")))
        for name, text in (("hots2", "; did you mean host2?"), ("nosuch", "the 2 hosts")):
            for of_host in (group_list.ListGroups, usage.ShowUsage):
                refused = self.refusal(of_host, "--host", name)
                self.assertIn(f"Placement has no GPUs of a host {name}; ", refused)
                self.assertIn(text, refused)
        service = self.computes["host2"].service_ref.uuid
        self.admin_api.put_service(service, {"status": "disabled", "disabled_reason": "repair"})
        off = "disabled: repair"
        self.assertEqual(
            [("host1", "up", "fermi", 8, 2, 1, 5), ("host2", off, "fermi, kepler", 8, 1, 0, 7)],
            self.values(host_list.ListHosts),
        )
        self.documented("host-list", host_list.ListHosts)
        self.admin_api.put_service(service, {"status": "enabled"})

        self.assertIn(
            "no longer answers", self.fields(servers.ShowServer, "pair")["cards"][0]["trouble"]
        )
        for card in (base.FIRST_SOCKET[0], base.SECOND_SOCKET[0]):
            ailments.answer_again(self.hosts["host1"], card)
        self.period("host1")
        self._test_show(two)
        self._test_usage(two, one)
        for command in (group_list.ListGroups, host_list.ListHosts):
            self.assertIn("for administrators", self.refusal(command, admin=False))
        self.force_down("host2")
        fault = self.boot_refused(self.flavor(gpus="1", gpu_arch="kepler"))
        self.assertIn("free only on hosts that take no new instance", fault)
        self.assertIn("their compute service is down", fault)

    def _test_show(self, two: base.Server) -> None:
        shown = self.fields(servers.ShowServer, "pair")
        self.assertEqual((two["id"], "host1", 2), (shown["id"], shown["host"], shown["gpus"]))
        self.assertEqual("2 GPUs (architecture fermi, hypervisor lxc)", shown["asked_for"])
        self.assertEqual(self.rendered(two), [card["address"] for card in shown["cards"]])
        self.documented("show", servers.ShowServer, "pair")
        self._stop_server(two)
        stopped = self.fields(servers.ShowServer, "pair")
        self.assertEqual(2, stopped["gpus"])
        self.assertEqual("Nova has no diagnostics of a server that is SHUTOFF", stopped["cards"])
        self._start_server(two)

        own = self.fields(servers.ShowServer, "pair", admin=False)
        self.assertEqual(shown["asked_for"], own["asked_for"])
        self.assertNotIn("cards", own)
        self.assertIn("Nova: No Server", self.refusal(servers.ShowServer, "nobody"))

    def _test_usage(self, two: base.Server, one: base.Server) -> None:
        self._migrate_server(two)
        stranger = "8e8a3c3b-0c3b-4f3c-9a53-5ba5e1e7a001"
        (uuid,) = self.groups("host1").values()
        body = {
            "allocations": {uuid: {"resources": {"PGPU": 1}}},
            "project_id": "elsewhere",
            "user_id": "nobody",
            "consumer_generation": None,
        }
        self.assertEqual(
            204, self.placement.put(f"/allocations/{stranger}", body, version="1.28").status
        )
        self.documented("usage", usage.ShowUsage)
        self.documented("usage-user", usage.ShowUsage, admin=False)
        project = two["tenant_id"]
        some = self.values(usage.ShowUsage, "--host", "host2", "--project", self.api.project_id)
        self.assertEqual({"host2"}, {row[4] for row in some})
        rows_by_claim = {(row[0], row[4], row[7]): row for row in self.values(usage.ShowUsage)}
        moved = (two["id"], "host2", 2)
        source = (two["id"], "host1", 2)
        left = (stranger, "host1", 1)
        self.assertEqual({moved, source, left, (one["id"], "host2", 1)}, set(rows_by_claim))
        self.assertEqual(
            (two["id"], "pair", "VERIFY_RESIZE", project, "host2", "10de:1091", "fermi", 2, 0, ""),
            rows_by_claim[moved],
        )
        self.assertIn("kept until its move", rows_by_claim[source][9])
        self.assertEqual("elsewhere", rows_by_claim[left][3])
        self.assertIn("unknown to Nova", rows_by_claim[left][9])

        rows, printed = sdk.run(self, usage.ShowUsage, admin=False)
        self.assertIn("This project has 5 GPUs and 0 vGPUs", printed)
        own = {row["Name"]: (row["GPUs"], row["Asked For"]) for row in sdk.rows(rows)}
        self.assertEqual({"pair", "single"}, set(own))
        self.assertEqual((1, "1 GPU (architecture kepler)"), own["single"])
        self.assertEqual(
            204, self.placement.delete(f"/allocations/{stranger}", version="1.28").status
        )


class ReasonsTest(ShownTestBase):
    def test_why_here_and_why_nowhere(self) -> None:
        self.boot(self.gpu_flavor(8), host="host1", name="all")
        here = self.fields(explain.ExplainServer, "all")
        self.assertEqual(("", "host1"), (here["fault"], here["host"]))
        self.assertEqual("the scheduler chose host1, which had what it asks for", here["why"][0])
        self.assertIn("no other host with GPUs could take it now", here["why"])
        self.assertEqual(
            [
                ("host1", True, "8 GPUs asked for, 0 of 8 free"),
                ("host2", False, "8 GPUs asked for, it has 4"),
            ],
            [(host["host"], host["has_it"], host["reason"]) for host in here["hosts"]],
        )
        self.documented("explain-here", explain.ExplainServer, "all")

        fault = self.boot_refused(self.flavor(gpus="5"), name="five")
        nowhere = self.fields(explain.ExplainServer, "five")
        self.assertEqual(fault, nowhere["fault"])
        self.assertRegex(nowhere["last_failure"], "^create at [0-9T:.-]+Z$")
        self.assertEqual(
            ["it is on no host, and none could take it now; the row hosts says why"], nowhere["why"]
        )
        own = self.fields(explain.ExplainServer, "five", admin=False)
        self.assertEqual(fault, own["fault"])
        self.assertNotIn("hosts", own)

        self._delete_server(self._named("all"))
        freed = self.fields(explain.ExplainServer, "five")
        self.assertIn("though 1 of 2 hosts with GPUs could take it now", freed["why"][0])
        self.documented("explain-nowhere", explain.ExplainServer, "five")

        self.boot(self.flavor(), name="plain")
        plain = self.fields(explain.ExplainServer, "plain")
        self.assertIn("asks for no GPU", plain["why"][0])
        self._test_flavors()

    def _named(self, name: str) -> base.Server:
        (server,) = (server for server in self.api.get_servers() if server["name"] == name)
        return dict(server)

    def _test_flavors(self) -> None:
        specs = {"gpus": "= 2", "gpu_arch": "s== fermi", "resources:PGPU": "2"}
        counted = self._create_flavor(name="cg1.xlarge", extra_spec=specs)
        status, printed, _ = sdk.shown(self, flavor_check.CheckFlavor, counted)
        self.assertEqual(0, status)
        self.assertRegex(printed, r"\| 2 GPUs \(architecture fermi\) +\| yes +\| +\|")

        wrong = self._create_flavor(name="cg1.wrong")
        sdk.connect(self).compute.create_flavor_extra_specs(
            wrong, {"gpus": "two", "gpu_archs": "fermi", "hw:cpu_policy": "x"}
        )
        self.documented("flavor-check", flavor_check.CheckFlavor, counted, wrong, status=1)
        for admin in (True, False):
            status, printed, _ = sdk.shown(
                self, flavor_check.CheckFlavor, "-f", "json", admin=admin
            )
            self.assertEqual(1, status)
            listed = [row["Flavor"] for row in json.loads(printed)]
            self.assertEqual(sorted(listed), listed)
            with_mistakes = [row for row in json.loads(printed) if row["Mistakes"]]
            self.assertEqual(
                [
                    "gpus='two': 'two' is not a whole number; allowed: '= N' or N, with N from 1 "
                    "to 1024",
                    "gpu_archs='fermi': unknown property; did you mean gpu_arch?",
                    "hw:cpu_policy='x': 'x' is not one of: dedicated, shared, mixed.",
                ],
                with_mistakes[0]["Mistakes"],
            )
            self.assertEqual(1, len(with_mistakes))
        self.assertIn("Nova: No Flavor", self.refusal(flavor_check.CheckFlavor, "nothing"))
        # A plain user may not read what hosts have.
        misspelt = self._create_flavor(extra_spec={"gpus": "= 2", "gpu_arch": "s== hoper"})
        for admin in (True, False):
            status, printed, _ = sdk.shown(self, flavor_check.CheckFlavor, misspelt, admin=admin)
            self.assertEqual(int(admin), status)
            self.assertEqual(admin, "did you mean hopper?" in printed, printed)


class RefusedActionTest(ShownTestBase):
    """What a plain user reads of an operation that was refused, with Nova's default policies"""

    CAST_AS_CALL = False

    def read(self, name: str, *, admin: bool = False) -> str:
        return "\n".join(self.fields(explain.ExplainServer, name, admin=admin)["failure_reason"])

    def test_each_refusal_is_read_by_its_owner(self) -> None:
        lxc_flavor = self.flavor(gpus="= 1", hypervisor="s== LXC")
        unsaid = self.gpu_flavor(1)
        for name, flavor in (("said", lxc_flavor), ("unsaid", unsaid), ("plain", self.flavor())):
            server = self.boot(flavor, host="host1", name=name)
            actions: tuple[tuple[dict[str, object], str], ...] = (
                ({"suspend": None}, "the state of a container cannot be saved; pause, stop or"),
                ({"rescue": None}, "a container is not started from another disk than its own;"),
            )
            for action, part in actions:
                with self.subTest(name, action=action):
                    (details,) = self.refused(action, server)
                    # Nova shows it to administrators alone.
                    self.assertIn(part, details)
                    self.assertEqual(details, self.read(name, admin=True))
                    read = self.read(name)
                    begin = {
                        "said": "",
                        "unsaid": "in a container: ",
                        "plain": "in a container, on a host with GPUs: ",
                    }[name]
                    self.assertIn(f"{begin}{part}", f"\n{read}")
                    self.assertIn("os_compute_api:os-instance-actions:events:details", read)
                    self.assertIn(f"openstack server event show {server['id']} req-", read)
                    self.assertEqual(name == "unsaid" and "suspend" in action, "in a VM: " in read)
        self.documented("explain-refused", explain.ExplainServer, "unsaid", admin=False)


class ToldThenTest(ShownTestBase):
    """What is said of an instance that got no GPUs, where some are free"""

    def test_what_no_host_can_have(self) -> None:
        """The command that makes the flavor says so, and the fault of an instance"""
        _, printed = sdk.run(self, flavors.CreateFlavor, "nine", "--gpus", "9", "--ram", "128")
        never = "no host has 9 GPUs in service"
        self.assertEqual(f"WARNING: no instance of nine can start now: {never}\n", printed)
        _, printed = sdk.run(self, flavor_check.CheckFlavor)
        self.assertEqual(f"nine: no instance can start now: {never}\n", printed)
        nine = next(flavor["id"] for flavor in self.api.get_flavors() if flavor["name"] == "nine")
        self.assertIn(f": {exception.FINAL}no host has 9 GPUs", self.boot_refused(nine))

    def test_several_at_once(self) -> None:
        kepler = self.flavor(gpus="= 1", gpu_arch="kepler")
        pair = self.boot_several(kepler, 2, name="pair")
        refused = self.boot_several(kepler, 4, "ERROR", name="four")
        for server in refused:
            self.assertEqual(
                "No valid host was found. Scheduling failed: 4 instances at once with 1 GPU "
                "(architecture kepler) each asked for, and not all of them fit; Nova starts all of "
                "them or none: ask for fewer",
                self._show_server(server)["fault"]["message"],
            )
        self.assertIn("and there is room for 2; Nova starts all", self.log())
        why = self.fields(explain.ExplainServer, refused[0]["id"])["why"]
        self.assertIn("it is one of 4 servers of a request, of which Nova starts all or none", why)
        self.assertIn("2 of them could start now", why)
        # An instance of such a request is one of several for its whole life.
        self.boot(kepler, name="last but one")
        self._shelve_server(pair[0])
        self.boot(kepler, name="last")
        self._unshelve_server(pair[0])
