# SPDX-License-Identifier: Apache-2.0
"""What is left of a live migration of which a step fails, and what its operator does next.

Before the guest moves it runs on, and nothing need be done. Later Nova sets the instance to ERROR,
and a hard reboot recovers it where its guest is.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from typing import Any

import fixtures
from nova import objects
from nova.tests.fixtures import libvirt as fakelibvirt

from tests.fixtures import economy
from tests.functional import NOVA, divided, live
from tests.functional.failing_steps import DRIVER, RPC, Step

# And where libvirt did not move it
ROLLBACK = (
    Step(f"{DRIVER}.rollback_live_migration_at_source"),
    Step(f"{DRIVER}.rollback_live_migration_at_destination"),
    Step(f"{RPC}.rollback_live_migration_at_destination"),
    Step(f"{RPC}.drop_move_claim_at_destination"),
)
# When the guest runs at the destination already
AT_DESTINATION = (
    Step(f"{RPC}.post_live_migration_at_destination"),
    Step(f"{DRIVER}.post_live_migration_at_destination"),
    Step(f"{DRIVER}.post_live_migration_at_destination", after=True),
)
MOVED = (
    Step(f"{DRIVER}.post_live_migration"),
    Step(f"{DRIVER}.post_live_migration_at_source"),
    Step(f"{DRIVER}.cleanup"),
    # Nova 2024.1 calls such a move completed: test_completed_without_the_destination.
    *(AT_DESTINATION if NOVA > 29 else ()),
)


class LiveRecoveriesTest(live.Moving, divided.DividedServersTestBase):
    # As in a cloud: no host hears of what fails at another one.
    CAST_AS_CALL = False
    leaves = {"task": "Nova's destination waits for a source that failed"}  # noqa: RUF012

    def setUp(self) -> None:
        super().setUp()
        self.start_host("host1")
        self.start_host("host2")
        self.boot(self.of_type(64), host="host2")
        self.server = self.boot(self.of_type(64, 2), host="host1")

    def live_migrate_failing(
        self, statuses: Collection[str] = ("failed", "error", "cancelled")
    ) -> None:
        """Return when Nova has ended the migration with one of *statuses*."""
        action = {"os-migrateLive": {"host": "host2", "block_migration": "auto"}}
        self.api.post_server_action(self.server["id"], action)

        self._wait_for_assert(lambda: self.has_ended(*statuses))
        economy.wait_for_quiet(5)

    def has_ended(self, *statuses: str) -> None:
        self.assertEqual(1, sum(status in statuses for status in self.statuses()))

    def statuses(self) -> list[str]:
        url = f"/os-migrations?instance_uuid={self.server['id']}"
        found = self.admin_api.api_get(url).body["migrations"]
        return [each["status"] for each in found]

    def assertIsAt(self, host: str) -> None:
        """The instance has two vGPUs there, and nothing is counted or made for it elsewhere."""
        self.periods(2)
        (other,) = self.hosts.keys() - {host}
        self.assertVGPUs(self.server, self.recorded(self.server), host)
        self.assertEqual(2, len(self.recorded(self.server)))
        expected = {"host1": 0, "host2": 1}
        expected[host] += 2
        for name, count in expected.items():
            self.assertEqual((8, 0, count), self.inventories(name)[64], name)
            self.assertEqual(count, len(self.kernels[name].made), name)
        self.assertRaises(fakelibvirt.libvirtError, self.domain, self.server, other)

    def hard_reboot(self) -> None:
        self.perform(self.server, "reboot", "ACTIVE", {"type": "HARD"})
        economy.wait_for_quiet(5)

    def assertRecovers(self, steps: Iterable[Step], host: str, *, reboots: bool = True) -> None:
        """Whichever of these fails; then it is like new, and for the next step."""
        for step in steps:
            with self.subTest(str(step)):
                with step.failing():
                    self.live_migrate_failing()
                if reboots:
                    self.hard_reboot()
                self.assertIsAt(host)
                self._delete_server(self.server)
                self.server = self.boot(self.of_type(64, 2), host="host1")

    def test_abort(self) -> None:
        """By a user, while the guest is on its way"""
        aborted = threading.Event()

        def abort(domain: Any) -> None:
            domain._job_type = fakelibvirt.VIR_DOMAIN_JOB_CANCELLED
            aborted.set()

        def during() -> None:
            url = f"/servers/{self.server['id']}/migrations"
            (migration,) = self.admin_api.api_get(url).body["migrations"]
            self.admin_api.api_delete(f"{url}/{migration['id']}")
            aborted.wait(60)

        name = "nova.tests.fixtures.libvirt.Domain.abortJob"
        self.useFixture(fixtures.MonkeyPatch(name, abort))
        self.during = during
        self.refusal = "operation aborted: migration out job: canceled by client"
        self.live_migrate_failing()
        self.assertTrue(aborted.is_set())
        self.hard_reboot()
        self.assertIsAt("host1")

    def test_rollback(self) -> None:
        self.refusal = "this step fails"
        self.assertRecovers(ROLLBACK, "host1")

    def test_moved(self) -> None:
        self.assertRecovers(MOVED, "host2")

    def test_the_source_dies_when_it_has_moved(self) -> None:
        """What Placement counts for the migration stays, and nobody ends that."""
        (held,) = self._get_allocations_by_server_uuid(self.server["id"]).keys() - {
            self.compute_rp_uuids["host1"]
        }
        self.live_migrate(self.server, "host2")
        (migration,) = objects.MigrationList.get_by_filters(
            self.context, {"instance_uuid": self.server["id"]}
        )
        for status in ("running", "completed"):
            migration.status = status
            migration.save()
            body = {
                "allocations": {held: {"resources": {"VGPU": 2}}},
                "consumer_generation": None,
                "project_id": self.api.project_id,
                "user_id": "user",
            }
            self.placement.put(f"/allocations/{migration.uuid}", body, version="1.28")
            self.assertEqual(2, self.inventories("host1")[64][2])
            self.assertIsAt("host2")

    if NOVA == 29:

        def test_completed_without_the_destination(self) -> None:
            """Nova leaves the instance at the source, in a task; its guest keeps its vGPUs."""
            with AT_DESTINATION[0].failing():
                self.live_migrate_failing(["completed"])
            self.periods(2)
            server = self.admin_api.get_server(self.server["id"])
            self.assertEqual("host1", server["OS-EXT-SRV-ATTR:host"])
            self.assertEqual("migrating", server["OS-EXT-STS:task_state"])
            self.assertTrue(self.domain(self.server, "host2"))
            self.assertEqual(3, len(self.kernels["host2"].made))
            total, reserved, used = self.inventories("host2")[64]
            self.assertLessEqual(total - reserved - used, 8 - 3)
