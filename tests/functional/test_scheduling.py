# SPDX-License-Identifier: Apache-2.0
"""Which host instances come to, with the real scheduler, Placement and compute hosts."""

from __future__ import annotations

from nova import objects

from nova_gpu.cmd import reports
from nova_gpu.core.scheduling import stats
from tests.functional import base, celled, reported, scheduling


class WeigherTest(scheduling.SchedulingTestBase):
    def test_pack_spread_and_last(self) -> None:
        self.start_host("gpu1")
        self.start_host("gpu2")
        self.start_host("plain", machine="cpu-only")
        one = self.gpu_flavor(1)
        (first,) = self.hosts_of(1, one)
        (other,) = {"gpu1", "gpu2"} - {first}
        # Four are a whole socket on either, and the host that is in use already has one.
        self.assertEqual([first, first], self.hosts_of(2, one))
        self.assertEqual([first, other], self.hosts_of(2, self.gpu_flavor(4)))
        spread = self.flavor(**{"gpus": "1", "gpu:distribution": "spread"})
        # One of eight is left on the first, four on the other.
        self.assertEqual([other], self.hosts_of(1, spread))
        self.assertEqual(["plain"], self.hosts_of(1, self.flavor()))
        self.flags(cpu_only_instances="never", group="gpu")
        self.assertEqual(["plain"], self.hosts_of(1, self.flavor()))
        self.boot_refused(self.flavor(), host=first)
        self.flags(cpu_only_instances="last", group="gpu")
        server = self.boot(self.flavor(), host=first)
        self.assertEqual(first, self.host_of(server))

    def test_single_requests_within_a_period(self) -> None:
        """They leave a whole host, and any scheduler knows of each claim."""
        self.start_host("host1")
        self.start_host("host2")
        one = self.gpu_flavor(1)
        chosen = {self.host_of(self.boot(one)) for _ in range(3)}
        (first,) = chosen
        node = objects.ComputeNode.get_first_node_by_host_for_old_compat(self.context, first)
        self.assertEqual(5, stats.loads(node.stats["nova_gpu"]).free_gpus)
        (other,) = {"host1", "host2"} - chosen
        self.assertEqual(other, self.host_of(self.boot(self.gpu_flavor(8))))

    def test_the_group_that_is_ranked_is_claimed(self) -> None:
        """Of two groups the one of which a GPU is in use already, whichever Placement has first"""
        self.start_host(machine="two-architectures")
        for architecture, root in (("kepler", "8"), ("fermi", "0")):
            flavor = self.flavor(gpus="1", gpu_arch=f"s== {architecture}")
            servers = [self.boot(flavor), self.boot(self.flavor(gpus="1"))]
            for server in servers:
                (gpu,) = self.instance(server).resources
                with self.subTest(architecture):
                    self.assertEqual(root, gpu.identifier[5])
                self._delete_server(server)
            self.period()

    def test_a_race_that_left_a_worse_set(self) -> None:
        """One GPU is free less on either socket: Placement has six, the host no four together."""

        def near(policy: str) -> str:
            return self.flavor(
                **{"gpus": "= 4", "gpu:topology": "numa", "gpu:topology_policy": policy}
            )

        # The worst host first, as if the scheduler had not yet heard of it.
        self.flags(gpu_weight_multiplier=-1000.0, group="gpu")
        self.start_host()
        whole, on_second = self.boot(self.gpu_flavor(4)), self.boot(self.gpu_flavor(1))
        self.assertGPUs(on_second, base.SECOND_SOCKET[:1])
        self._delete_server(whole)
        rest = self.boot(self.gpu_flavor(3))
        self.assertGPUs(rest, base.SECOND_SOCKET[1:])
        self.assertGPUs(self.boot(self.gpu_flavor(1)), base.FIRST_SOCKET[:1])
        self._delete_server(rest)
        self.period()
        fault = self.boot_refused(near("required"))
        self.assertIn("Exceeded maximum number of retries", fault)
        self.start_host("host2")
        server = self.boot(near("required"))
        self.assertGPUs(server, base.FIRST_SOCKET, host="host2")
        actions = self.api.get_instance_actions(server["id"])
        url = f"/servers/{server['id']}/os-instance-actions/{actions[0]['request_id']}"
        events = self.api.api_get(url).body["instanceAction"]["events"]
        runs = [
            event["host"] for event in events if event["event"].endswith("build_and_run_instance")
        ]
        self.assertEqual({"host1", "host2"}, set(runs))
        self.period()  # until then Nova counts the refused build as failed
        # Who only prefers it takes what there is.
        preferring = self.boot(near("preferred"))
        self.assertGPUs(preferring, [*base.FIRST_SOCKET[1:], base.SECOND_SOCKET[1]])


class CellsTest(celled.TwoCells, scheduling.SchedulingTestBase):
    """Hosts in two cells are ranked together, and a refusal counts those of both."""

    def test_packed_and_refused(self) -> None:
        for host in celled.CELLS:
            self.start_host(host)
        one = self.gpu_flavor(1)
        chosen = {self.host_of(self.boot(one)) for _ in range(3)}
        (other,) = celled.CELLS.keys() - chosen
        self.assertEqual(1, len(chosen))
        self.assertEqual(other, self.host_of(self.boot(self.gpu_flavor(8))))
        fault = self.boot_refused(self.gpu_flavor(6))
        self.assertIn("6 GPUs asked for, at most 5 free in one host", fault)
        fault = self.boot_refused(self.gpu_flavor(1), host=other)
        self.assertIn("1 GPU asked for, none free", fault)


class ReleasesTest(scheduling.SchedulingTestBase):
    """Hosts and a scheduler of several releases of nova-gpu, as in a rolling upgrade"""

    def test_hosts_of_other_releases(self) -> None:
        self.start_host("host1")
        two = self.gpu_flavor(2)
        for name, change in reported.READABLE.items():
            with self.subTest(name):
                reported.report_as(self, "host1", change)
                (line,) = reports.other_releases()
                self.assertIn("host1: ", line)
                self.assertEqual("host1", self.host_of(server := self.boot(two)))
                self._delete_server(server)
        # One that says the same in another way cannot be read, until the scheduler is upgraded.
        reported.report_as(self, "host1", reported.unreadable)
        self.assertIn("No valid host", self.boot_refused(two))
        self.assertEqual("host1", self.host_of(self.boot(self.flavor())))
        self.period()
        self.assertEqual([], reports.other_releases())
        self.assertEqual("host1", self.host_of(self.boot(two)))

    def test_moves_between_releases(self) -> None:
        self.start_host("host1")
        self.start_host("host2")
        server = self.boot(self.gpu_flavor(2), host="host1")
        source, target = "host1", "host2"
        for name, change in reported.READABLE.items():
            with self.subTest(name):
                reported.report_as(self, "host1", change)
                self._migrate_server(server)
                self.confirm(server, source)
                self.assertGPUs(server, base.FIRST_SOCKET[:2], target)
                source, target = target, source
        # Nothing comes to a host whose report cannot be read.
        reported.report_as(self, "host1", reported.unreadable)
        self.assertIn("No valid host", str(self.refused({"migrate": None}, server)))
        self.assertGPUs(server, base.FIRST_SOCKET[:2], "host2")
