# SPDX-License-Identifier: Apache-2.0
"""Which notification is sent at which moment, and of whom."""

from __future__ import annotations

from typing import Any

from nova_gpu.core.model import PciAddress
from nova_gpu.host.state import quarantine as quarantines
from tests.functional import alone, base, cleaned

FIRST, SECOND = base.FIRST_SOCKET[:2]


class NotificationsTest(base.GPUServersTestBase):
    HOSTS = ("host1",)

    def types(self) -> list[str]:
        return [each.event_type for each in self.sent()]

    def assertPayload(self, notification: Any, **expected: Any) -> None:
        """All of its fields, but for the reason's words; by default those of a card of nobody's."""
        payload = {
            "host": "host1",
            "project_id": None,
            "instance_uuid": None,
            "addresses": [FIRST],
            "product_id": "10de:1091",
            "product": "Tesla M2090",
            "architecture": "fermi",
            "count": 1,
            "vgpu_type": None,
            **expected,
        }
        reason = notification.payload["reason"]
        self.assertEqual({**payload, "reason": reason}, notification.payload)
        if notification.event_type in ("gpu.claim", "gpu.release"):
            self.assertIsNone(reason)
        else:
            self.assertGreater(len(reason), 10)

    def owned_by(self, server: base.Server) -> dict[str, Any]:
        return {"project_id": self.instance(server).project_id, "instance_uuid": server["id"]}


class LifecycleTest(NotificationsTest):
    def test_a_claim_at_the_first_start_and_a_release_at_the_end(self) -> None:
        server = self.boot(self.flavor(**base.BLUEPRINT))
        (claim,) = self.sent()
        self.assertEqual(("gpu.claim", "INFO"), (claim.event_type, claim.priority))
        self.assertEqual("compute.host1", claim.publisher_id)
        expected = {**self.owned_by(server), "addresses": [FIRST, SECOND], "count": 2}
        self.assertPayload(claim, **expected)
        self._reboot_server(server, hard=True)
        self._stop_server(server)
        self._start_server(server)
        self._rebuild_server(server, base.IMAGE)
        self.period()
        self.assertEqual([], self.types())
        self._delete_server(server)
        (release,) = self.sent()
        self.assertEqual("gpu.release", release.event_type)
        self.assertPayload(release, **expected)


class QuarantineTest(alone.Alone, NotificationsTest):
    def setUp(self) -> None:
        super().setUp()
        self.cleaned = self.useFixture(cleaned.Cleaned(self))
        self.restart_host("host1")

    def test_a_card_that_is_not_clean(self) -> None:
        server = self.boot(self.gpu_flavor(1))
        self.sent()
        owner = self.owned_by(server)
        self.cleaned.stain(FIRST)
        self._delete_server(server)
        quarantine, release = self.sent()
        self.assertEqual(("gpu.quarantine", "ERROR"), (quarantine.event_type, quarantine.priority))
        self.assertPayload(quarantine, **owner)
        self.assertIn("[gpu]clean_command ended with 1", quarantine.payload["reason"])
        self.assertEqual("gpu.release", release.event_type)
        self.period()
        self.assertEqual([], self.types())
        self.cleaned.wipe(FIRST)
        quarantines.release(self.state() / "gpu-quarantine", PciAddress.parse(FIRST))
        self.period()
        self.assertEqual(["gpu.recover"], self.types())


class RefusalTest(NotificationsTest):
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
            addresses=[],
            architecture="kepler",
            count=2,
        )
