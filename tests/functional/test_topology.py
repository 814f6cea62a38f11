# SPDX-License-Identifier: Apache-2.0
"""GPUs that are near each other, from sysfs and NVML to the flavor that insists on it."""

from __future__ import annotations

from tests.functional import base
from tests.functional.scheduling import SchedulingTestBase

FIRST, SECOND = base.FIRST_SOCKET, base.SECOND_SOCKET


class TopologyTest(SchedulingTestBase):
    def near(self, gpus: int, topology: str, policy: str = "required") -> str:
        words = {"gpu:topology": topology, "gpu:topology_policy": policy}
        return self.flavor(gpus=f"= {gpus}", **words)

    def test_a_race_that_left_a_worse_set(self) -> None:
        """One GPU is free less on either socket: Placement has six, the host no four together."""
        # The worst host first, as if the scheduler had not yet heard of it.
        self.flags(gpu_weight_multiplier=-1000.0, group="gpu")
        self.start_host()
        whole, on_second = self.boot(self.gpu_flavor(4)), self.boot(self.gpu_flavor(1))
        self.assertGPUs(on_second, SECOND[:1])
        self._delete_server(whole)
        rest = self.boot(self.gpu_flavor(3))
        self.assertGPUs(rest, SECOND[1:])
        self.assertGPUs(self.boot(self.gpu_flavor(1)), FIRST[:1])
        self._delete_server(rest)
        self.period()
        fault = self.boot_refused(self.near(4, "numa"))
        self.assertIn("Exceeded maximum number of retries", fault)
        self.start_host("host2")
        server = self.boot(self.near(4, "numa"))
        self.assertGPUs(server, FIRST, host="host2")
        actions = self.api.get_instance_actions(server["id"])
        url = f"/servers/{server['id']}/os-instance-actions/{actions[0]['request_id']}"
        events = self.api.api_get(url).body["instanceAction"]["events"]
        runs = [each["host"] for each in events if each["event"].endswith("build_and_run_instance")]
        self.assertEqual({"host1", "host2"}, set(runs))
        # Who only prefers it takes what there is.
        preferring = self.boot(self.near(4, "numa", "preferred"))
        self.assertGPUs(preferring, [*FIRST[1:], SECOND[1]])
