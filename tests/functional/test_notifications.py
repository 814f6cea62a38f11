# SPDX-License-Identifier: Apache-2.0
"""Which notification is sent at which moment, and of whom."""

from __future__ import annotations

from typing import Any

from nova_gpu import notifications
from nova_gpu.core.model import PciAddress
from nova_gpu.host import quarantine as quarantines
from tests.fixtures import ailments, daemons
from tests.functional import base, cleaned

FIRST, SECOND = base.FIRST_SOCKET[:2]


class NotificationsTest(base.GPUServersTestBase):
    def setUp(self) -> None:
        super().setUp()
        self.start_host()

    def sent(self) -> list[Any]:
        """Those about GPUs since the last call"""
        thread = notifications._outbox._thread
        if thread is not None:
            thread.join(60)
        found = [each for each in self.notifier.notifications if each.event_type.startswith("gpu.")]
        self.notifier.reset()
        return found

    def types(self) -> list[str]:
        return [each.event_type for each in self.sent()]


class LifecycleTest(NotificationsTest):
    def test_a_claim_at_the_first_start_and_a_release_at_the_end(self) -> None:
        server = self.boot(self.flavor(**base.BLUEPRINT))
        (claim,) = self.sent()
        self.assertEqual(("gpu.claim", "INFO"), (claim.event_type, claim.priority))
        self.assertEqual("compute.host1", claim.publisher_id)
        expected = {
            "host": "host1",
            "project_id": self.api.project_id,
            "instance_uuid": server["id"],
            "addresses": [FIRST, SECOND],
            "product_id": "10de:1091",
            "architecture": "fermi",
            "count": 2,
            "reason": None,
        }
        self.assertEqual(expected, {key: claim.payload[key] for key in expected})
        self._reboot_server(server, hard=True)
        self._stop_server(server)
        self._start_server(server)
        self._rebuild_server(server, "155d900f-4e14-4e4c-a73d-069cbf4541e6")
        self.period()
        self.assertEqual([], self.types())
        self._delete_server(server)
        (release,) = self.sent()
        self.assertEqual("gpu.release", release.event_type)
        self.assertEqual(expected, {key: release.payload[key] for key in expected})

    def test_an_instance_without_gpus(self) -> None:
        self._delete_server(self.boot(self.flavor()))
        self.assertEqual([], self.types())

    def test_a_resize_to_another_host_and_its_confirmation(self) -> None:
        server = self.boot(self.gpu_flavor(1))
        self.start_host("host2")
        self.sent()
        self._resize_server(server, self.gpu_flavor(2))
        (claim,) = self.sent()
        self.assertEqual(
            ("gpu.claim", "host2", 2),
            (claim.event_type, claim.payload["host"], claim.payload["count"]),
        )
        self.confirm(server, "host1")
        (release,) = self.sent()
        self.assertEqual(
            ("gpu.release", "host1", [FIRST]),
            (release.event_type, release.payload["host"], release.payload["addresses"]),
        )


class QuarantineTest(NotificationsTest):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(daemons.Daemons())
        self.cleaned = self.useFixture(cleaned.Cleaned(self))
        self.restart_host("host1")

    def test_a_card_that_is_not_clean(self) -> None:
        server = self.boot(self.gpu_flavor(1))
        self.sent()
        self.cleaned.stain(FIRST)
        self._delete_server(server)
        quarantine, release = self.sent()
        self.assertEqual(
            ("gpu.quarantine", "ERROR", ([FIRST], server["id"])),
            (quarantine.event_type, quarantine.priority, _whose(quarantine)),
        )
        self.assertIn("[gpu]clean_command ended with 1", quarantine.payload["reason"])
        self.assertEqual("gpu.release", release.event_type)
        self.period()
        self.assertEqual([], self.types())
        quarantines.release(self.state() / "gpu-quarantine", PciAddress.parse(FIRST))
        self.period()
        self.assertEqual(["gpu.recover"], self.types())


class RefusalTest(NotificationsTest):
    def test_what_was_asked_and_why_nothing_fits(self) -> None:
        fault = self.boot_refused(self.flavor(gpus="= 2", gpu_arch="s== kepler"))
        (refusal,) = self.sent()
        self.assertEqual(("gpu.no_valid_host", "ERROR"), (refusal.event_type, refusal.priority))
        self.assertTrue(refusal.publisher_id.startswith("scheduler."))
        payload = refusal.payload
        self.assertEqual((2, "kepler"), (payload["count"], payload["architecture"]))
        self.assertIn(payload["reason"], fault)
        self.assertEqual((None, []), (payload["host"], payload["addresses"]))
        self.assertEqual(self.api.project_id, payload["project_id"])

    def test_a_flavor_that_cannot_be_understood(self) -> None:
        self.boot_refused(self.flavor(**{"gpus": "= 2", "resources:PGPU": "3"}))
        (refusal,) = self.sent()
        self.assertEqual((None, None), (refusal.payload["count"], refusal.payload["architecture"]))


class HealthTest(NotificationsTest):
    def test_a_card_of_nobody_and_back(self) -> None:
        ailments.silence(self.hosts["host1"], FIRST)
        for _ in range(2):
            self.period()
        (fault,) = self.sent()
        self.assertEqual(("gpu.fault", "ERROR"), (fault.event_type, fault.priority))
        self.assertEqual(([FIRST], None), _whose(fault))
        ailments.answer_again(self.hosts["host1"], FIRST)
        for _ in range(2):
            self.period()
        (recovery,) = self.sent()
        self.assertEqual(("gpu.recover", "INFO"), (recovery.event_type, recovery.priority))
        self.assertEqual(([FIRST], None), _whose(recovery))

    def test_an_instances_card_and_after_a_restart(self) -> None:
        server = self.boot(self.gpu_flavor(1))
        self.sent()
        ailments.silence(self.hosts["host1"], FIRST)
        self.period()
        (fault,) = self.sent()
        self.assertEqual(("gpu.fault", ([FIRST], server["id"])), (fault.event_type, _whose(fault)))
        self.assertEqual(self.api.project_id, fault.payload["project_id"])
        self.restart_host("host1")
        (fault,) = self.sent()
        self.assertEqual(("gpu.fault", ([FIRST], server["id"])), (fault.event_type, _whose(fault)))


def _whose(notification: Any) -> tuple[list[str], str | None]:
    return notification.payload["addresses"], notification.payload["instance_uuid"]
