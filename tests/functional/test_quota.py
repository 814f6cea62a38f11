# SPDX-License-Identifier: Apache-2.0
"""Quota of GPUs by unified limits: Nova's own enforcement, with stand-ins for Keystone's limits."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fixtures
from nova.tests.functional.api import client
from openstack.identity.v3 import limit, registered_limit
from osc_lib import exceptions
from oslo_limit import fixture as limit_fixture
from testtools import content

from nova_gpu.scheduler import quota_check
from nova_gpu.virt.inventory import counting
from osc_gpu import flavor_check, flavors, usage
from osc_gpu.fleet import start
from tests.functional import base, sdk
from tests.functional.readings import Server


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
        one = self.create("one", "--gpus", "1", "--private", "--property", "hw:cpu_policy=shared")
        self.assertEqual(
            base.BLUEPRINT | {"resources:PGPU": "2"}, self.admin_api.get_extra_specs(two)
        )
        found = {each["id"]: each for each in self.admin_api.get_flavors()}
        self.assertTrue(found[two]["os-flavor-access:is_public"])

        server = self.boot(two)
        self.assertGPUs(server, base.FIRST_SOCKET[:2])
        self.assertIn("class:PGPU", self.over_quota(two))
        self._add_flavor_access(one)
        self.boot(one)
        self.assertIn("class:PGPU", self.over_quota(one))
        self.assertInventory(used=3)
        self._delete_server(server)
        self.boot(self.flavor(gpus="= 1"))
        self.assertIn("class:PGPU", self.over_quota(two))

    def test_a_start_and_an_unshelve_are_judged(self) -> None:
        """Of a server that gave its GPUs back: while it is stopped nobody counts them."""
        self.start_host()
        two = self.create("two", "--gpus", "2", "--property", "gpu:on_stop=release")
        first = self.boot(two)
        self._stop_server(first)
        other = self.boot(two)
        for _ in range(2):
            said = self.refused({"os-start": None}, first)
            over = "quota of class:PGPU is 3, 2 in use, and 2 more asked for"
            self.assertTrue(any(over in each for each in said), said)
            self.assertEqual("SHUTOFF", self._show_server(first)["status"])
            self.assertInventory(used=2)
            self.period()
        self._stop_server(other)
        self._start_server(first)
        self.assertGPUs(first, base.FIRST_SOCKET[:2])
        self._shelve_server(first)
        self._start_server(other)
        over = "Nova refused that .*class:PGPU"
        with self.assertRaisesRegex(exceptions.CommandError, over):
            sdk.run(self, start.StartServer, first["id"], admin=False)

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
            said = self.refused({"os-start": None}, servers[0])
        self.assertTrue(any("quota of class:PGPU is 3" in each for each in said), said)
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
        reasons = [each.payload["reason"] for each in self.sent() if "reason" in each.payload]
        for reason, expected in zip(
            filter(None, reasons), (refusal(2, 3), refusal(1, 2)), strict=True
        ):
            self.assertIn(expected, reason)
        self._delete_server(other)
        self._unshelve_server(server)
        self.force_down(self._show_server(server)["OS-EXT-SRV-ATTR:host"])
        self._evacuate_server(server)

    def test_two_flavors_at_once_that_the_api_does_not_count(self) -> None:
        """The first is judged before the second has its GPUs, and again when it is to start."""
        self.start_host()
        two, refuse_over = self.gpu_flavor(2), quota_check.refuse_over

        def judge(*args: Any) -> None:
            refuse_over(*args)
            with mock.patch.object(quota_check, "refuse_over", refuse_over):
                self.boot(two)

        with mock.patch.object(quota_check, "refuse_over", judge):
            fault = self.boot_refused(two)
        self.assertIn("quota of class:PGPU is 3, 4 in use, and 0 more asked for", fault)
        self.assertInventory(used=2)

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


class SumsTest(QuotaTestBase):
    """In any order in which a tenant takes GPUs and gives them back it has no more than its quota.

    One GPU, and a server for each way to take one; each in turn has it, and all others try."""

    def setUp(self) -> None:
        super().setUp()
        self.flags(allow_resize_to_same_host=True, shelved_offload_time=0)
        self.limits.projlimits[self.api.project_id]["class:PGPU"] = 1
        self.start_host()
        self.gives = self.create("gives", "--gpus", "1", "--property", "gpu:on_stop=release")
        self.keeps = self.create("keeps", "--gpus", "1")
        self.none = self.flavor()
        # The tenant's own image gives nothing back.
        self.own_image = self.image(**{"gpu:on_stop": "release"})
        self.made: list[Server] = []
        self.servers = {
            "start": self.prepared(self.gives, "os-stop", "SHUTOFF"),
            "reboot": self.prepared(self.gives, "os-stop", "SHUTOFF"),
            "unshelve": self.prepared(self.keeps, "shelve", "SHELVED_OFFLOADED"),
            "resize": self.boot(self.none),
        }
        self.steps: list[str] = []

    def prepared(self, flavor: str, action: str, status: str) -> Server:
        """Return one that had a GPU and gave it back, so that the next one gets it."""
        server = self.boot(flavor)
        self.perform(server, action, status)
        return server

    def take(self, way: str) -> None:
        server = self.servers.get(way, {})
        if way == "start":
            self.perform(server, "os-start", "ACTIVE")
        elif way == "reboot":
            self.perform(server, "reboot", "ACTIVE", {"type": "HARD"})
        elif way == "unshelve":
            self.perform(server, "unshelve", "ACTIVE")
        elif way == "resize":
            self.resize(self.keeps)
        else:
            self.made.append(self.boot(self.keeps, image_uuid=self.own_image))
            if way == "create and stop":
                self.perform(self.made[-1], "os-stop", "SHUTOFF")

    def give(self, way: str) -> None:
        if way in ("start", "reboot"):
            self.perform(self.servers[way], "os-stop", "SHUTOFF")
        elif way == "unshelve":
            self.perform(self.servers[way], "shelve", "SHELVED_OFFLOADED")
        elif way == "resize":
            self.resize(self.none)
        else:
            self._delete_server(self.made.pop())

    def resize(self, flavor: str) -> None:
        server = self.servers["resize"]
        self.perform(server, "resize", "VERIFY_RESIZE", {"flavorRef": flavor})
        with self.on("host1"):
            self.perform(server, "confirmResize", "ACTIVE")

    def test_one_takes_it_from_the_other(self) -> None:
        ways = ("create", "create and stop", *self.servers)
        for way in ways:
            self.take(way)
            self.assertSums(way, 1, running=int(way != "create and stop"))
            for other in ways:
                if other != way:
                    self.assertRefused(other)
                    self.assertSums(f"{way}, then {other}", 1, int(way != "create and stop"))
            self.period()
            self.give(way)
            self.assertSums(f"{way} and back", 0, 0)

    def assertRefused(self, way: str) -> None:
        statuses = {name: self._show_server(each)["status"] for name, each in self.servers.items()}
        with contextlib.suppress(client.OpenStackApiException):
            self.take(way)
            raise AssertionError(f"{way} got a second one: {self.steps}")
        for name, server in self.servers.items():
            self._wait_until_settled(server, statuses[name])

    def assertSums(self, step: str, used: int, running: int) -> None:
        """Placement counts that many, and so many are of guests that run."""
        self.steps.append(step)
        self.addDetail("steps", content.text_content("\n".join(self.steps)))
        self.assertInventory(used=used)
        guests = self.computes["host1"].driver._host.list_guests(only_running=True)
        self.assertEqual(running, sum(len(self.rendered({"id": each.uuid})) for each in guests))
