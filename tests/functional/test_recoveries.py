# SPDX-License-Identifier: Apache-2.0
"""What a move that has failed leaves at its source. The matrix fails each of a move's calls."""

from __future__ import annotations

from unittest import mock

from nova import objects
from nova.compute import task_states

from tests.fixtures import economy
from tests.functional import failing_steps, kvm


class RecoveriesTest(kvm.KVMServersTestBase):
    # As in a cloud: no host hears of what fails at another one.
    CAST_AS_CALL = False
    HOSTS = ("host1", "host2")
    leaves = {"domain": "Nova leaves it at the source, without its GPUs"}  # noqa: RUF012

    def test_domain_at_the_source(self) -> None:
        """It keeps its GPUs while it runs, or while Nova may yet need it."""
        server = self.boot(self.gpu_flavor(1), host="host1")
        before = self.rendered(server, "host1")
        with failing_steps.failing(failing_steps.GUEST):
            resize = {"resize": {"flavorRef": self.gpu_flavor(2)}}
            self.api.post_server_action(server["id"], resize)
            self._wait_until_settled(server, "ERROR")
            economy.wait_for_quiet(5)
        self.guest(server).create()
        self.period("host1")
        self.assertInventory(reserved=1, host="host1")
        self.guest(server).destroy()
        for task in (task_states.RESIZE_PREP, None):
            instance = self.instance(server)
            instance.task_state = task
            instance.save()
            self.assertEqual(before, self.rendered(server, "host1"))
            self.period("host1")
        self.assertEqual([], self.rendered(server, "host1"))
        self.assertInventory(host="host1")
        self.assertIn(before[0], self.recorded(self.boot(self.gpu_flavor(4), host="host1")))
        self.perform(server, "reboot", "ACTIVE", {"type": "HARD"})
        self.assertEqual(1, len(self.recorded(server)))
        self.periods(2)  # a claim gets what the failed move had from then on

    def test_moves_that_failed_again_and_again(self) -> None:
        """Nova keeps their records until their instance is deleted."""
        server = self.boot(self.gpu_flavor(1), host="host2")
        for _ in range(20):
            objects.Migration(
                self.context,
                instance_uuid=server["id"],
                status="error",
                migration_type="live-migration",
                source_compute="host1",
                source_node="host1",
                dest_compute="host2",
            ).create()
        real = objects.Instance.get_by_uuid
        with mock.patch.object(objects.Instance, "get_by_uuid", side_effect=real) as spy:
            self.one_period("host1")
        self.assertLessEqual(spy.call_count, 3)
