# SPDX-License-Identifier: Apache-2.0
"""A resize to a host of another cell, which an administrator's policy allows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import fixtures
from nova import context as nova_context
from nova.policies import base as base_policies
from nova.policies import servers as servers_policies
from nova.tests.functional.api import client

from tests.functional import base, kvm

_CELLS = (("host1", "cell1"), ("host2", "cell2"))


class InCells(base.GPUServersTestBase):
    """Two cells, with a host in each"""

    NUMBER_OF_CELLS = 2

    @contextlib.contextmanager
    def in_cell_of(self, host: str) -> Iterator[None]:
        """As a service of that cell, of which it has the database and no other"""
        mapping, untargeted = self.cell_mappings[dict(_CELLS)[host]], nova_context.get_admin_context

        def get_admin_context(*args: Any, **kwargs: Any) -> nova_context.RequestContext:
            context = untargeted(*args, **kwargs)
            nova_context.set_target_cell(context, mapping)
            return context

        before, self.context = self.context, get_admin_context()
        with fixtures.MonkeyPatch("nova.context.get_admin_context", get_admin_context):
            try:
                yield
            finally:
                self.context = before

    def start_hosts(self) -> None:
        for host, cell in _CELLS:
            with self.in_cell_of(host):
                self.start_host(host, cell_name=cell)

    def one_period(self, name: str = "host1") -> None:
        with self.in_cell_of(name):
            super().one_period(name)


class CrossCellTest(InCells, kvm.KVMServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        rules = {servers_policies.CROSS_CELL_RESIZE: base_policies.RULE_ADMIN_API}
        self.policy.set_rules(rules, overwrite=False)
        # There is no disk of which to take one.
        snapshot = "nova.virt.libvirt.driver.LibvirtDriver.snapshot"
        self.useFixture(fixtures.MonkeyPatch(snapshot, lambda *args, **kwargs: None))
        self.start_hosts()
        self.server = self.boot(self.gpu_flavor(1), host="host1")

    def test_fails_and_is_recovered(self) -> None:
        """Nova's conductor hands the destination an instance without its migration context, as it
        has read it before the claim; so what was claimed there never becomes the instance's."""
        with self.in_cell_of("host1"):
            before = self.recorded(self.server)
        action = {"resize": {"flavorRef": self.gpu_flavor(2)}}
        # A cast is a call here, so that what the host raises reaches the API.
        with contextlib.suppress(client.OpenStackApiException):
            self.admin_api.post_server_action(self.server["id"], action)
        self._wait_until_settled(self.server, "ERROR")
        fault = self._show_server(self.server)["fault"]["message"]
        self.assertIn("the instance holds 0 GPUs, and its flavor asks for 2", fault)
        self.perform(self.server, "reboot", "ACTIVE", {"type": "HARD"})
        for host, used in (("host1", 1), ("host2", 0)):
            self.period(host)
            self.assertInventory(used=used, host=host)
        with self.in_cell_of("host1"):
            self.assertGPUs(self.server, before, "host1")
