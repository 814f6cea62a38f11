# SPDX-License-Identifier: Apache-2.0
"""Quota of GPUs by unified limits: Nova's own enforcement, with stand-ins for Keystone's limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import fixtures
from openstack.identity.v3 import limit, registered_limit
from oslo_limit import fixture as limit_fixture

from nova_gpu.virt.inventory import counting
from osc_gpu import flavor_check, flavors, usage
from tests.functional import base, sdk


class QuotaTestBase(base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.flags(driver="nova.quota.UnifiedLimitsDriver", group="quota")
        of_project = {self.api.project_id: {"class:PGPU": 3}}
        # For the oslo.limit of Nova 2024.1 -1 is a limit like any other.
        others = dict.fromkeys(("servers", "class:VCPU", "class:MEMORY_MB", "class:DISK_GB"), 10**6)
        self.limits = self.useFixture(
            limit_fixture.LimitFixture(others | {"class:PGPU": 0}, of_project)
        )

    def create(self, name: str, *arguments: str) -> str:
        """The id of a flavor that our command makes"""
        words = ["--vcpus", "1", "--ram", "128", "--disk", "1", name, *arguments]
        (columns, values), _ = sdk.run(self, flavors.CreateFlavor, *words)
        return str(dict(zip(columns, values, strict=True))["id"])


class QuotaTest(QuotaTestBase):
    def over_quota(self, flavor: str) -> str:
        return self.assertAnswer(403, self.boot, flavor)

    def test_counted_are_those_whose_flavor_says_so(self) -> None:
        self.start_host()
        two = self.create("two", "--gpus", "2", "--arch", "fermi", "--hypervisor", "LXC")
        private = ("--private", "--project", self.api.project_id)
        one = self.create("one", "--gpus", "1", *private, "--property", "hw:cpu_policy=shared")
        self.assertEqual(
            base.BLUEPRINT | {"resources:PGPU": "2"}, self.admin_api.get_extra_specs(two)
        )
        flavors_by_id = {flavor["id"]: flavor for flavor in self.admin_api.get_flavors()}
        self.assertTrue(flavors_by_id[two]["os-flavor-access:is_public"])

        server = self.boot(two)
        self.assertGPUs(server, base.FIRST_SOCKET[:2])
        self.assertIn("class:PGPU", self.over_quota(two))
        self.boot(one)
        self.assertIn("class:PGPU", self.over_quota(one))
        self.assertInventory(used=3)
        self._delete_server(server)
        self.boot(self.flavor(gpus="= 1"))
        self.assertIn("class:PGPU", self.over_quota(two))

    def test_a_start_and_an_unshelve_are_judged(self) -> None:
        """Of a server that gave its GPUs back: while it is stopped nobody counts them."""
        self.start_host()
        two = self.create("two", "--gpus", "2", "--on-stop", "release")
        first = self.boot(two)
        self._stop_server(first)
        other = self.boot(two)
        for _ in range(2):
            messages = self.refused({"os-start": None}, first)
            over = "quota of class:PGPU is 3, 2 in use, and 2 more asked for"
            self.assertTrue(any(over in message for message in messages), messages)
            self.assertEqual("SHUTOFF", self._show_server(first)["status"])
            self.assertInventory(used=2)
            self.period()
        self._stop_server(other)
        self._start_server(first)
        self.assertGPUs(first, base.FIRST_SOCKET[:2])
        self._shelve_server(first)
        self._start_server(other)
        unshelve = self.api.post_server_action, first["id"], {"unshelve": None}
        self.assertIn("class:PGPU", self.assertAnswer(403, *unshelve))

    def test_two_starts_at_once(self) -> None:
        """The second is judged before the first has its GPUs, and again once it has its own."""
        self.start_host()
        two = self.create("two", "--gpus", "2", "--property", "gpu:on_stop=release")
        servers = []
        for _ in range(2):
            servers.append(self.boot(two))
            self._stop_server(servers[-1])
        refuse_over = counting.refuse_over

        def judge(client: Any, instance: Any, *args: Any, has_them: bool) -> None:
            refuse_over(client, instance, *args, has_them=has_them)
            if not has_them and instance.uuid == servers[0]["id"]:
                self._start_server(servers[1])

        with mock.patch.object(counting, "refuse_over", judge):
            messages = self.refused({"os-start": None}, servers[0])
        self.assertTrue(
            any("quota of class:PGPU is 3" in message for message in messages), messages
        )
        self.assertGPUs(servers[1], base.FIRST_SOCKET[:2])
        self.assertInventory(used=2)

    def test_flavors_that_the_api_does_not_count(self) -> None:
        """nova-scheduler judges them; a move is charged with what its instance has not."""
        self.flags(shelved_offload_time=0, allow_resize_to_same_host=True)
        for host in ("host1", "host2"):
            self.start_host(host)
        one, two, three = map(self.gpu_flavor, (1, 2, 3))
        self.limits.projlimits[self.api.project_id]["class:PGPU"] = 2
        refusal = "quota of class:PGPU is 2, {} in use, and {} more asked for".format
        for server in self.boot_several(one, 3, "ERROR"):
            fault = self._show_server(server)["fault"]["message"]
            self.assertIn("ask for at most 2 of the 3 instances at once", fault)
            self._delete_server(server)
        server = self.boot(two, host="host1")
        self.assertIn(refusal(2, 1), self.boot_refused(one))

        self._migrate_server(server)
        self.confirm(server, "host1")
        self.sent()
        self.refused({"resize": {"flavorRef": three}}, server)

        self._shelve_server(server)
        other = self.boot(one)
        self.refused({"unshelve": None}, server)
        # Nova shows the reason in its log and in our notification only.
        reasons = [
            notification.payload["reason"]
            for notification in self.sent()
            if "reason" in notification.payload
        ]
        for reason, expected in zip(
            filter(None, reasons), (refusal(2, 3), refusal(1, 2)), strict=True
        ):
            self.assertIn(expected, reason)
        self._delete_server(other)
        self._unshelve_server(server)
        self.force_down(self._show_server(server)["OS-EXT-SRV-ATTR:host"])
        self._evacuate_server(server)

    def _add_flavor_access(self, flavor: str) -> None:
        action = {"addTenantAccess": {"tenant": self.api.project_id}}
        self.admin_api.api_post(f"/flavors/{flavor}/action", action)


class ModelsTest(QuotaTestBase):
    """Limits of one model, with flavors that Nova's API counts by it and others."""

    M2090, K40M = "CUSTOM_GPU_MODEL_TESLA_M2090", "CUSTOM_GPU_MODEL_TESLA_K40M"

    def setUp(self) -> None:
        super().setUp()
        self.limits.reglimits |= {f"class:{self.M2090}": 0, f"class:{self.K40M}": -1}
        self.limits.projlimits[self.api.project_id] = {
            "class:PGPU": 100,
            f"class:{self.M2090}": 3,
        }
        self.start_host(machine="two-architectures")
        keystone = SimpleNamespace(
            registered_limits=self.registered_limits, limits=self.project_limits
        )
        self.useFixture(fixtures.MonkeyPatch("tests.functional.sdk._Connection.identity", keystone))

    def registered_limits(self) -> list[registered_limit.RegisteredLimit]:
        limits = self.limits.reglimits.items()
        return [
            registered_limit.RegisteredLimit(resource_name=name, default_limit=value)
            for name, value in limits
        ]

    def project_limits(self, project_id: str) -> list[limit.Limit]:
        limits = self.limits.projlimits[project_id].items()
        return [limit.Limit(resource_name=name, resource_limit=value) for name, value in limits]

    def used(self) -> list[int]:
        """What Placement counts for the project: GPUs, and those of each model"""
        usages = self.placement.get(f"/usages?project_id={self.api.project_id}", version="1.9")
        counted = usages.body["usages"]
        return [counted.get(name, 0) for name in ("PGPU", self.M2090, self.K40M)]

    def test_each_model_has_a_limit(self) -> None:
        fermi = self.boot(self.flavor(gpus="= 1", gpu_arch="fermi"))
        self.assertEqual([1, 0, 0], self.used())
        # What was there before, and flavors that do not say a model, count within a period.
        self.flags(count_models=True, group="gpu")
        self.periods(2)
        self.assertEqual([1, 1, 0], self.used())
        counted = self.create("m2090", "--gpus", "1", "--model", "Tesla M2090")
        specs = self.admin_api.get_extra_specs(counted)
        self.assertEqual("1", specs[f"resources:{self.M2090}"])
        self.boot(counted)
        says = self.flavor("says", **{"gpus": "= 1", "gpu:model": "s== Tesla M2090"})
        third = self.boot(says)
        self.assertEqual([3, 3, 0], self.used())
        refusal = self.assertAnswer(403, self.boot, counted)
        self.assertIn(f"class:{self.M2090} is over limit of 3", refusal)
        fault = self.boot_refused(says)
        self.assertIn(f"quota of class:{self.M2090} is 3, 3 in use, and 1 more asked for", fault)
        self.boot(self.flavor(**{"gpus": "= 2", "gpu:model": "s== Tesla K40m"}))
        self.assertEqual([5, 3, 2], self.used())

        for admin in (True, False):
            (_, rows), _ = sdk.run(self, usage.ShowUsage, "--limits", admin=admin)
            self.assertEqual(
                [
                    (f"class:{self.K40M}", 2, "unlimited"),
                    (f"class:{self.M2090}", 3, "3"),
                    ("class:PGPU", 5, "100"),
                    ("class:VGPU", 0, "not registered"),
                ],
                list(rows),
            )
        (_, rows), _ = sdk.run(self, flavor_check.CheckFlavor)
        counts = {row[0]: row[2] for row in rows}
        self.assertEqual(("yes", "no"), (counts["m2090"], counts["says"]))

        self._delete_server(fermi)
        self._delete_server(third)
        self.assertEqual([3, 1, 2], self.used())
        self.period()
        self.assertEqual((), self.judge().differences)
