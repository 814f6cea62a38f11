# SPDX-License-Identifier: Apache-2.0
"""A host that is full, half of it of instances that ``openstack gpu preempt`` may end."""

from __future__ import annotations

import json
from typing import Any

import fixtures
from nova import context as nova_context
from nova import objects
from nova.api.metadata import base as metadata
from osc_lib import exceptions

from osc_gpu import explain, host_list
from osc_gpu_fleet import preemption, retries
from tests.functional import base, sdk
from tests.functional.readings import Server

STOPPED = {"gpu:preemptible": "0s", "gpu:on_stop": "release"}
DELETED = {"gpu:preemptible": "0s", "gpu:on_preempt": "delete"}


class Preempting(base.GPUServersTestBase):
    """A host that is full, half of it of who may be taken"""

    def setUp(self) -> None:
        super().setUp()
        self.start_host()
        for module in (preemption, retries):
            self.useFixture(fixtures.MockPatchObject(module, "POLL_S", 0.1))
        self.useFixture(fixtures.MockPatchObject(preemption, "_SHORT_S", 0.1))
        self.two = self.flavor("two", **{"gpus": "= 2", "gpu:on_stop": "release"})
        self.three = self.boot(self.flavor(gpus="= 3", **STOPPED), name="stopped")
        self.one = self.boot(self.flavor(gpus="= 1", **DELETED), name="gone")
        hour = {**STOPPED, "gpu:preemptible": "1h"}
        self.young = self.boot(self.flavor(gpus="= 2", **hour), name="young")
        self.firm = self.boot(self.gpu_flavor(2))

    def run_it(self, *arguments: str, project: str = "") -> tuple[list[Any], str]:
        """The names of the table, and what is said beside it"""
        project = project or self.api.project_id
        taken, output = sdk.run(self, preemption.Preempt, *arguments, "--project", project)
        return [row[1] for row in taken[1]], output

    def apply(self, *arguments: str) -> tuple[list[Any], str]:
        return self.run_it(*arguments, "--apply", "--notice", "1")

    def refusal(self, *arguments: str, **more: str) -> str:
        refused = self.assertRaises(exceptions.CommandError, self.run_it, *arguments, **more)
        return str(refused)

    def in_guest(self, server: Server) -> dict[str, str]:
        """What the guest reads of the metadata service about itself"""
        context = nova_context.get_admin_context()
        mapping = objects.InstanceMapping.get_by_instance_uuid(context, server["id"])
        with nova_context.target_cell(context, mapping.cell_mapping) as cell:
            attributes = ["metadata", "system_metadata", "ec2_ids", "flavor", "info_cache"]
            instance = objects.Instance.get_by_uuid(cell, server["id"], [*attributes, "keypairs"])
            shown = metadata.InstanceMetadata(instance)
            return dict(
                json.loads(shown.lookup("/openstack/latest/meta_data.json")).get("meta", {})
            )

    def listed(self) -> str:
        """As ``openstack gpu host list`` has it"""
        ((_, state, *_),) = sdk.run(self, host_list.ListHosts)[0][1]
        return str(state)

    def undo(self) -> None:
        _, output = sdk.run(self, preemption.Preempt, "--undo")
        self.assertEqual("all hosts are open to preemptible instances\n", output)

    def takers(self, server: Server, *, admin: bool = True) -> list[str]:
        """Who has taken its GPUs, as ``openstack gpu explain`` has it"""
        command = explain.ExplainServer, "-f", "json", server["id"]
        _, shown, _ = sdk.shown(self, *command, admin=admin)
        when, *takers = json.loads(shown)["preempted"]
        self.assertRegex(when, "^told that its GPUs are taken at 2[0-9T:-]+Z, for$")
        return takers

    def takers_and_shown(self, server: Server) -> tuple[list[str], list[str]]:
        """As an administrator reads it, and as its user does"""
        return self.takers(server), self.takers(server, admin=False)

    def status(self, server: Server) -> str:
        return str(self._show_server(server)["status"])

    def assertDone(self, action: str, server: Server) -> None:
        """As ``openstack server event list`` shows afterwards, to an administrator, of who is gone
        as well"""
        actions = sdk.connect(self).compute.server_actions(server["id"])
        (done,) = [entry.user_id for entry in actions if entry.action == action]
        self.assertEqual("admin", done)

    def assertUntouched(self, *servers: Server) -> None:
        for server in servers:
            self.assertEqual("ACTIVE", self.status(server))
            self.assertNotIn("gpu:preempt_at", self.in_guest(server))
