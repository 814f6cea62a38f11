# SPDX-License-Identifier: Apache-2.0
"""``openstack gpu capacity`` beside what the scheduler then does."""

from __future__ import annotations

from osc_lib import exceptions

from osc_gpu import capacity
from tests.functional import base, sdk

_FLAVOR = {"gpus": "= 2", "gpu_arch": "s== fermi"}


class CapacityTest(base.GPUServersTestBase):
    def capacity(self, flavor: str) -> dict[str, tuple[int, str]]:
        """(instances, reason) by host"""
        taken, printed = sdk.run(self, capacity.ShowCapacity, flavor)
        rows = sdk.rows(taken)
        total = sum(row["Instances"] for row in rows)
        self.assertIn(f"{total} could boot now", printed)
        return {row["Host"]: (row["Instances"], row["Why Not More"]) for row in rows}

    def test_what_it_says_boots_and_no_more(self) -> None:
        self.start_host("host1")
        self.start_host("host2", "two-architectures")
        fermi, any_gpu = self.flavor(**_FLAVOR), self.gpu_flavor(1)
        self.assertEqual(
            {"host1": (4, "no more GPUs"), "host2": (2, "no more GPUs")}, self.capacity(fermi)
        )
        self.assertEqual(16, sum(count for count, _ in self.capacity(any_gpu).values()))

        self.boot(any_gpu, host="host1")
        self.assertEqual((3, "no more GPUs"), self.capacity(fermi)["host1"])
        count = 0
        while any(count for count, _ in self.capacity(fermi).values()):
            self.boot(fermi)
            count += 1
        self.assertEqual(5, count)
        self.assertEqual(
            {
                "host1": (0, "2 GPUs asked for, 1 of 8 free"),
                "host2": (0, "2 GPUs asked for, 0 of 4 free"),
            },
            self.capacity(fermi),
        )
        self.boot_refused(fermi)

        self.assertRaisesRegex(exceptions.CommandError, "Nova: No Flavor", self.capacity, "none")
        # Hosts that nothing is started on, and who is not to know
        service = self.computes["host1"].service_ref.uuid
        self.admin_api.put_service(service, {"status": "disabled", "disabled_reason": "repair"})
        self.force_down("host2")
        self.assertEqual(
            {
                "host1": (0, "disabled: repair"),
                "host2": (0, "down"),
            },
            self.capacity(any_gpu),
        )
        refused = self.assertRaises(
            exceptions.CommandError, sdk.run, self, capacity.ShowCapacity, any_gpu, admin=False
        )
        self.assertRegex(str(refused), "for administrators")
        self.assertNotIn("\n", str(refused))
