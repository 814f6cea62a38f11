# SPDX-License-Identifier: Apache-2.0
"""In any order in which a tenant takes GPUs and gives them back it has no more than its quota."""

from __future__ import annotations

import contextlib

from nova.tests.functional.api import client
from testtools import content

from tests.functional import test_quota
from tests.functional.readings import Server


class SumsTest(test_quota.QuotaTestBase):
    """One GPU, and a server for each way to take one; each in turn has it, and all others try."""

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
