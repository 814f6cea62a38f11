# SPDX-License-Identifier: Apache-2.0
"""What instances are charged: the rules one by one, and some days of a cloud."""

from __future__ import annotations

import json
import logging
import pathlib

import fixtures
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.notifications import Event
from nova_gpu.virt.usage import accounts
from nova_gpu.virt.usage.accounts import Account, Accounts
from tests.fixtures import ailments, billed_cloud
from tests.fixtures.bases import compute

UUID, OTHER = "9a3b8c5e-53e3-4b54-9b9f-1c9b6a1a2a33", "5e1c8c5e-53e3-4b54-9b9f-1c9b6a1a2a33"
A, B = "0000:04:00.0", "0000:05:00.0"
NOON = 1793534400.0  # 2026-11-01T12:00:00+00:00
HOUR = 3600.0


def has(*addresses: str, uuid: str = UUID) -> Account:
    return Account(uuid, "a-project", "a-user", "10de:1091", None, None, None, addresses)


class AccountsTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu"))
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.file = self.folder / "gpu-usage.json"
        # The host booted 1,000 s ago, at noon.
        self.time, self.step = 1000.0, 0.0
        self.start()

    def start(self, boot_id: str = "this") -> None:
        self.accounts = Accounts(
            self.folder, boot_id, lambda: self.time, lambda: NOON + self.time - 1000 + self.step
        )

    def period(self, *held: Account, after: float = 60.0) -> list[tuple[str, float, float]]:
        """The hour's end, its seconds and the total of each report"""
        self.time += after
        reports = self.accounts.period(held)
        return [
            (audit.end[11:16], seconds, account.reported_seconds)
            for audit, account, seconds in reports
        ]

    def seconds(self) -> float:
        return sum(account.seconds for account in accounts.read(self.folder))

    def test_each_hour_has_its_own(self) -> None:
        self.period(has(A, B))
        for _ in range(58):
            self.assertEqual([], self.period(has(A, B)))
        self.assertEqual([("13:00", 2 * 3540.0, 2 * 3540.0)], self.period(has(A, B)))
        # The service was down for two hours and a half.
        self.start()
        self.assertEqual(
            [("14:00", 7200.0, 14280.0), ("15:00", 7200.0, 21480.0)],
            self.period(has(A, B), after=2.5 * HOUR),
        )

    def test_the_first_and_the_last_minute(self) -> None:
        """From the claim to the release, to the second"""
        self.period()
        self.time += 20
        self.accounts.began(UUID)
        self.period(has(A), after=40)
        self.assertEqual(40, self.seconds())
        self.time += 10
        self.accounts.released(OTHER, {A})
        self.accounts.released(UUID, {A})
        self.period(after=50)
        self.assertEqual(50, self.seconds())

    def test_what_is_not_counted(self) -> None:
        for name, gone_before, boot_id, then, expected in (
            ("an instance that no record has any more", 0, "this", (), 60),
            ("one that was deleted while the service was down", 1, "this", (), 60),
            ("a host that has booted", 0, "another", (has(A),), 60),
            ("a boot without an id", 0, "", (has(A),), 60),
            ("a restart", 0, "this", (has(A),), 3660),
        ):
            with self.subTest(name):
                self.file.unlink(missing_ok=True)
                self.start()
                self.period(has(A), after=0)
                self.period(has(A))
                self.time += HOUR
                self.start(boot_id)
                if gone_before:
                    self.accounts.released(UUID, {A})
                self.period(*then, after=0)
                self.assertEqual(expected, self.seconds())

    def test_a_clock_that_is_set_changes_nothing(self) -> None:
        self.period(has(A), after=0)
        seconds = 0.0
        for step in (0, HOUR, -HOUR, 86400 * 365, 0):
            self.step = step
            for _ in range(90):
                seconds += sum(report[1] for report in self.period(has(A)))
        seconds += sum(report[1] for report in self.period(has(A), after=HOUR))
        self.assertEqual(5 * 90 * 60 + HOUR, self.seconds())
        self.assertAlmostEqual(self.seconds(), seconds, delta=HOUR)

    def test_the_last_total_is_repeated(self) -> None:
        """A broker may have been away; who adds up adds nothing."""
        self.period(has(A))
        self.period(has(A))
        reports = [self.period(after=HOUR) for _ in range(6)]
        self.assertEqual([60.0, 0.0, 0.0, 0.0], [seconds for ((_, seconds, _),) in reports[:4]])
        self.assertEqual({60.0}, {total for ((_, _, total),) in reports[:4]})
        self.assertEqual([[], []], reports[4:])
        self.assertEqual([], accounts.read(self.folder))

    def test_a_return_goes_on_with_the_same_total(self) -> None:
        """A counter that fell would be counted anew by Prometheus."""
        self.period(has(A))
        self.period(has(A))
        self.accounts.released(UUID, {A})
        self.assertEqual([("13:00", 60.0, 60.0)], self.period(after=HOUR))
        self.period(has(B))
        ((_, seconds, total),) = self.period(has(B), after=HOUR)
        self.assertEqual(("14:00", HOUR - 180, HOUR - 120), (_, seconds, total))
        (account,) = accounts.read(self.folder)
        self.assertEqual((0, (B,)), (account.audits, account.addresses))

    def test_files_that_cannot_be_read(self) -> None:
        self.period(has(A))
        content = json.loads(self.file.read_text())
        (account,) = content["accounts"]
        for broken in (
            "",
            "[]",
            "{}",
            json.dumps({**content, "at": None}),
            json.dumps({**content, "at": -1e7}),
            json.dumps({**content, "accounts": {}}).replace("{}", '{"a": 1}'),
            json.dumps({**content, "accounts": [{**account, "addresses": 1}]}),
            json.dumps({**content, "accounts": [{**account, "more": 1}]}),
        ):
            with self.subTest(broken):
                self.file.write_text(broken)
                self.start()
                self.period(has(A))
                self.assertEqual(0, self.seconds())
                self.period(has(A))
                self.assertEqual(60, self.seconds())
        self.file.write_text(json.dumps({**content, "at": 1e9}))
        self.start()
        self.period(has(A))
        self.assertEqual(60, self.seconds())

    def test_many_instances_of_a_minute(self) -> None:
        """The file is then larger than nova-gpu's others are."""
        self.period(*(has(A, uuid=f"{UUID[:-4]}{number:04}") for number in range(5000)))
        self.start()
        self.assertEqual(5000, len(accounts.read(self.folder)))

    def test_a_folder_that_cannot_be_written(self) -> None:
        self.file.mkdir()
        self.start()
        self.period(has(A))
        self.period(has(A))
        self.assertIn("Failed to write the GPU seconds of instances", self.log.output)
        ((_, seconds, _),) = self.period(has(A), after=HOUR)
        self.assertGreater(seconds, HOUR - 120)


class ServiceTest(compute.ComputeTestCase):
    """The whole service; one instance has a card, and another one a part of one by the database"""

    def setUp(self) -> None:
        super().setUp()
        self.events: list[Event] = []
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.notifications.emit", self.events.append))
        self.time = 0.0

    def restart(self) -> None:
        self.useFixture(config_fixture.Config(CONF)).config(instance_usage_audit=True)
        self.compute.restart()
        own = self.compute.gpus.periods.cards.reporter._accounts
        assert own
        own._clock, own._wall = lambda: self.time, lambda: NOON + self.time
        own._at = self.time

    def spawn(self) -> list[str]:
        part = f"{compute.DIVIDED}/nvidia-63/0"
        own = [(self.provider, compute.ONE)]
        parts = [(self.compute.provider("1bb3", "nvidia-63"), part)]
        instances = [
            self.compute.instance({"gpus": "= 1"}, *own),
            self.compute.instance({"vgpus": "= 1"}, *parts),
        ]
        self.compute.spawn(instances[0])
        return [instance.uuid for instance in instances]

    def held(self) -> dict[str, tuple[str, ...]]:
        return {
            account.instance_uuid: account.addresses
            for account in accounts.read(self.host.root / "state")
        }

    def test_off(self) -> None:
        """What was counted before goes: its time would go on when it is switched on again."""
        (self.host.root / "state/gpu-usage.json").write_text("{}")
        self.compute.restart()
        self.spawn()
        self.compute.period()
        self.assertFalse((self.host.root / "state/gpu-usage.json").exists())

    def test_on(self) -> None:
        self.restart()
        self.time += 20
        card, part = self.spawn()
        self.time += 40
        self.compute.period()
        self.assertEqual(
            {card: (compute.ONE,), part: (f"{compute.DIVIDED}/nvidia-63/0",)}, self.held()
        )
        self.events.clear()
        self.time += HOUR
        self.compute.period()
        self.assertEqual(["gpu.exists"] * 2, [str(event.type) for event in self.events])
        for event in self.events:
            fields = event.project_id, event.user_id, event.count
            self.assertEqual(("tenant", "user", 1), fields)
            self.assertEqual("2026-11-01T13:00:00+00:00", event.audit_period_ending)
        # What the service started itself begins with its claim.
        seconds = {event.instance_uuid: event.gpu_seconds for event in self.events}
        self.assertEqual({card: HOUR - 20, part: HOUR - 60}, seconds)
        ailments.silence(self.host, compute.ONE)
        self.compute.period()
        self.assertEqual((compute.ONE,), self.held()[card])
        self.useFixture(config_fixture.Config(CONF)).config(group="gpu", charge_faulty=False)
        self.compute.period()
        self.assertEqual([(), (f"{compute.DIVIDED}/nvidia-63/0",)], list(self.held().values()))


class CloudTest(base.BaseTestCase):
    """What the tenants of a cloud are charged after days of all that can happen to it"""

    DAYS = 2

    def cloud(self, seed: int, *, charge_faulty: bool = True) -> billed_cloud.Cloud:
        self.useFixture(config_fixture.Config(CONF)).config(
            group="gpu", charge_faulty=charge_faulty
        )
        logging.getLogger("nova_gpu").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("nova_gpu").setLevel, logging.NOTSET)
        # Simulated hosts lose no power while a file is written.
        self.useFixture(fixtures.MonkeyPatch("os.fsync", lambda _: None))
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        cloud = billed_cloud.Cloud(folder, seed, charges_faulty=charge_faulty)
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.notifications.emit", cloud.receive))
        cloud.run(self.DAYS * billed_cloud.DAY)
        return cloud

    def test_all_that_can_happen(self) -> None:
        for seed, charge_faulty in ((1, True), (2, False)):
            cloud = self.cloud(seed, charge_faulty=charge_faulty)
            with self.subTest(seed):
                self.assertGreater(len(cloud.truth), 10)
                self.assertGreater(len(cloud.sent) - len(cloud.received), 5)
                totals = billed_cloud.totals(cloud.received)
                for key, error in billed_cloud.errors(cloud, totals).items():
                    self.assertIsNone(error, str(key))
                sums = billed_cloud.sums(cloud.sent)
                for key in sums.keys() | totals.keys():
                    self.assertAlmostEqual(sums[key], totals[key], delta=0.1)
