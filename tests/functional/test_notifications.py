# SPDX-License-Identifier: Apache-2.0
"""Which notification is sent at which moment, and of whom."""

from __future__ import annotations

from typing import Any

from tests.functional import base

# Fields of gpu.exists alone
_OF_USAGE = (
    *("user_id", "usage_id", "gpu_seconds", "total_gpu_seconds"),
    *("audit_period_beginning", "audit_period_ending"),
)


class NotificationsTest(base.GPUServersTestBase):
    HOSTS = ("host1",)

    def assertPayload(self, notification: Any, **expected: Any) -> None:
        """All of its fields, but for the reason's words; by default those of nobody."""
        payload = {
            "host": "host1",
            "project_id": None,
            "instance_uuid": None,
            "addresses": [],
            "product_id": "10de:1091",
            "product": "Tesla M2090",
            "architecture": "fermi",
            "count": 1,
            "vgpu_type": None,
            **dict.fromkeys(_OF_USAGE),
            **expected,
        }
        reason = notification.payload["reason"]
        self.assertEqual({**payload, "reason": reason}, notification.payload)
        if notification.event_type in ("gpu.claim", "gpu.release"):
            self.assertIsNone(reason)
        else:
            self.assertGreater(len(reason), 10)

    def test_a_claim_at_the_first_start_and_a_release_at_the_end(self) -> None:
        server = self.boot(self.flavor(**base.BLUEPRINT))
        (claim,) = self.sent()
        self.assertEqual(("gpu.claim", "INFO"), (claim.event_type, claim.priority))
        self.assertEqual("compute.host1", claim.publisher_id)
        expected = {"project_id": self.api.project_id, "instance_uuid": server["id"], "count": 2}
        expected["addresses"] = list(base.FIRST_SOCKET[:2])
        self.assertPayload(claim, **expected)
        self._reboot_server(server, hard=True)
        self._stop_server(server)
        self._start_server(server)
        self._rebuild_server(server, base.IMAGE)
        self.period()
        self.assertEqual([], self.sent())
        self._delete_server(server)
        (release,) = self.sent()
        self.assertEqual("gpu.release", release.event_type)
        self.assertPayload(release, **expected)

    def test_what_was_asked_and_why_nothing_fits(self) -> None:
        fault = self.boot_refused(self.flavor(gpus="= 2", gpu_arch="s== kepler"))
        (refusal,) = self.sent()
        self.assertEqual(("gpu.no_valid_host", "ERROR"), (refusal.event_type, refusal.priority))
        self.assertTrue(refusal.publisher_id.startswith("scheduler."))
        self.assertIn(refusal.payload["reason"], fault)
        (server,) = self.api.get_servers()
        nothing = dict.fromkeys(("host", "product_id", "product"), None)
        self.assertPayload(
            refusal,
            **nothing,
            project_id=self.api.project_id,
            instance_uuid=server["id"],
            architecture="kepler",
            count=2,
        )
