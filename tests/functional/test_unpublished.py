# SPDX-License-Identifier: Apache-2.0
"""A host whose GPUs could not be published: who claims some goes to another."""

from __future__ import annotations

from typing import Any

import fixtures
from nova.compute import resource_tracker

from nova_gpu.virt.inventory import card_inventory
from tests.functional import base

_LIBVIRT = "nova.virt.libvirt.driver.LibvirtDriver"
_TRACKER = "nova.compute.resource_tracker.ResourceTracker"


class UnpublishedTest(base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        for host in ("host1", "host2"):
            self.start_host(host)
        self.server = self.boot(self.gpu_flavor(1), host="host1")
        # The scheduler prefers who has more memory left.
        for _ in range(2):
            self.boot(self.flavor(), host="host2")

    def test_nova_tries_another_host(self) -> None:
        publish, claim = (
            card_inventory.CardInventory.publish,
            resource_tracker.ResourceTracker._claim_resources,
        )
        tried = []

        def noted(this: resource_tracker.ResourceTracker, *args: Any) -> Any:
            tried.append(this.host)
            return claim(this, *args)

        def fail_on_host1(
            this: card_inventory.CardInventory, tree: Any, nodename: str, kind: str
        ) -> None:
            if nodename == "host1":
                _fail()
            publish(this, tree, nodename, kind)

        with fixtures.MonkeyPatch(
            "nova_gpu.virt.inventory.card_inventory.CardInventory.publish", fail_on_host1
        ):
            self.restart_host("host1")
            self.period("host1")
            self.assertGPUs(self.server, base.FIRST_SOCKET[:1], "host1")
            with fixtures.MonkeyPatch(f"{_TRACKER}._claim_resources", noted):
                server = self.boot(self.gpu_flavor(2))
            self.assertEqual("host2", self.host_of(server))
            self.assertEqual(["host1", "host2"], tried)


def _fail(*args: Any, **kwargs: Any) -> None:
    raise RuntimeError("what nobody thought of")
