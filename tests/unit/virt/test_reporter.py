# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent import futures
from unittest import mock

import fixtures
from oslo_config import fixture as config_fixture
from oslotest import base

from nova_gpu.conf import CONF
from nova_gpu.core import unavailability
from nova_gpu.core.device import Device
from nova_gpu.core.model import DeliveryMode, PciAddress, Product
from nova_gpu.core.unavailability import Scope
from nova_gpu.notifications import Event
from nova_gpu.virt import reporter
from nova_gpu.virt.inventory import card_groups
from nova_gpu.virt.usage import ledger, records
from nova_gpu.virt.usage.ledger import Owner
from tests.fixtures import cards

A, B = "0000:04:00.0", "0000:05:00.0"
FIRST, SECOND = cards.addresses(A, B)
FERMI = Product("10de", "1091", "Tesla M2090", "fermi")
UUID = "9a3b8c5e-53e3-4b54-9b9f-1c9b6a1a2a33"
OWNER = Owner(UUID, "a-project")


class BulletinTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.useFixture(config_fixture.Config(CONF)).config(host="gpu1")
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu", format="%(message)s"))
        self.events: list[Event] = []
        # What follows is tests/unit/notifications/test_emit.py's.
        self.useFixture(fixtures.MonkeyPatch("nova_gpu.notifications.emit", self.events.append))
        self.reporter = reporter.Reporter()
        empty = ledger.Snapshot(records=records.Records({}))
        self.reporter.settle_bills(lambda: empty, lambda devices: {})
        self.cards = [cards.placed(address, product=FERMI) for address in (A, B)]
        self.groups: card_groups.CardGroups = {}

    def types(self) -> list[str]:
        types = [str(event.type) for event in self.events]
        self.events.clear()
        return types


class ReportTest(BulletinTest):
    def report(
        self,
        obstacles: Mapping[PciAddress, str] | None = None,
        *,
        faults: Mapping[PciAddress, str] | None = None,
        reserved: Mapping[PciAddress, str] | None = None,
        owners: Mapping[PciAddress, Owner] | None = None,
    ) -> None:
        own = {a: cards.reasons(text, scope=Scope.ALL) for a, text in (obstacles or {}).items()}
        unavailable = unavailability.merge(cards.unavailable(faults, reserved), own)
        mode = DeliveryMode.LXC
        self.groups = card_groups.offered(self.cards, self.groups, mode, unavailable)
        self.reporter.report(self.cards, unavailable, self.groups, owners or {})

    def assertSaid(self, count: int, words: str) -> None:
        self.assertEqual(count, self.log.output.count(words), self.log.output)

    def test_obstacles(self) -> None:
        """One that comes is a fault, and one that is there is none; each is said once."""
        for _ in range(2):
            self.report({SECOND: "no driver has it"})
        self.assertSaid(1, "(Tesla M2090) is offered to instances")
        self.assertSaid(1, f"GPU {B} (Tesla M2090) is not offered: no driver has it")
        self.assertEqual([], self.types())
        self.report({FIRST: "no driver has it", SECOND: "no driver has it"})
        self.assertEqual(["gpu.fault"], self.types())

    def test_there_and_back(self) -> None:
        self.report()
        for _ in range(2):
            self.report(reserved={FIRST: "2 ECC errors; reset it"})
        self.assertSaid(1, f"GPU {A} (Tesla M2090) is not given to instances: 2 ECC errors")
        (fault,) = self.events
        self.assertEqual(["gpu.fault"], self.types())
        self.assertEqual(("gpu1", (A,), None, 1), _main(fault))
        self.assertEqual("2 ECC errors; reset it", fault.reason)
        self.assertEqual(("10de:1091", "fermi"), (fault.product_id, fault.architecture))
        for _ in range(2):
            self.report()
        self.assertSaid(1, f"GPU {A} (Tesla M2090) is offered again")
        (recovery,) = self.events
        self.assertEqual(["gpu.recover"], self.types())
        self.assertEqual("2 ECC errors; reset it", recovery.reason)

    def test_an_instances(self) -> None:
        for faults, reserved, words in (
            ({FIRST: "gone"}, {}, "does not work for the instance that has it: gone"),
            ({}, {FIRST: "2 ECC errors"}, "stays with the instance that has it"),
        ):
            self.report(faults=faults, reserved=reserved, owners={FIRST: OWNER})
            self.assertSaid(1, words)
            (fault,) = self.events
            self.assertEqual(("gpu1", (A,), UUID, 1), _main(fault))
            self.assertEqual("a-project", fault.project_id)
            self.events.clear()


class StrangersTest(BulletinTest):
    def said(self) -> int:
        return self.log.output.count(f"Instances do not get GPU {A}")

    def test_each_is_said_once(self) -> None:
        """Of whom nothing is known is not to be removed, and who reaches it is no stranger."""
        has: dict[Device, str] = {FIRST: "one"}
        self.reporter.report_strangers(has, {}, {"one": frozenset({FIRST})})
        self.assertNotIn(A, self.log.output)
        for _ in range(2):
            self.reporter.report_strangers({}, has)
        self.assertEqual((1, False), (self.said(), "virsh" in self.log.output))
        for count in (2, 2):
            self.reporter.report_strangers(has, {})
            self.assertEqual((count, True), (self.said(), "virsh" in self.log.output))
        self.assertIn("the domain one has it", self.log.output)
        self.reporter.report_strangers({}, {})
        self.reporter.report_strangers(has, {})
        self.assertEqual(3, self.said())


class SharedTest(BulletinTest):
    def test_each_is_said_once_and_when_it_is_over(self) -> None:
        both = {"two": frozenset({FIRST}), "one": frozenset({FIRST}), "three": frozenset[Device]()}
        for _ in range(2):
            self.reporter.report_shared(both)
        self.assertEqual(1, self.log.output.count(f"Several guests can open GPU {A}: one, two. "))
        self.reporter.report_shared({**both, "three": frozenset({FIRST})})
        self.assertIn(f"Several guests can open GPU {A}: one, three, two. ", self.log.output)
        self.reporter.report_shared({"one": frozenset({FIRST})})
        self.assertIn(f"Only one guest can open GPU {A} now.", self.log.output)


class ReachedTest(BulletinTest):
    """What running guests reach that is not their own"""

    def report(self, reached: Mapping[str, frozenset[Device]]) -> None:
        counted = {"two": frozenset({("group", A)}), "one": frozenset({("group", B)})}
        usage = ledger.Snapshot(
            reached=reached, records=records.Records(counted, projects={"two": "theirs"})
        )
        self.reporter.report_reached(usage, lambda devices: {device: FERMI for device in devices})

    def test_once_for_both(self) -> None:
        for _ in range(2):
            self.report({"one": frozenset({FIRST})})
        message = f"The guest one reaches GPU {A}, which is not its own and which the instances two"
        self.assertEqual(1, self.log.output.count(message))
        events = [(e.instance_uuid, e.project_id, *e.addresses) for e in self.events]
        self.assertEqual([("one", None, A), ("two", "theirs", A)], events)
        self.assertEqual(["gpu.reached"] * 2, self.types())
        self.report({})
        self.assertIn(f"The guest one, which reached GPU {A}, has ended", self.log.output)

    def test_starts_and_deletions_in_parallel(self) -> None:
        """Of instances with eight cards, whose domains Nova removes twice"""
        interval = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, interval)
        sys.setswitchinterval(1e-5)
        devices: dict[Device, Product] = {PciAddress(0, n, 0, 0): FERMI for n in range(8)}

        def end(number: int) -> None:
            for turn in range(30):
                owner = Owner(f"{number}-{turn}", "a-project")
                for action in (*[self.reporter.claimed] * 2, *[self.reporter.released] * 2):
                    action(owner, devices)

        with futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(end, range(4)))
        self.assertEqual(2 * 4 * 30 * 8, sum(event.count for event in self.events))

    def test_what_nova_does_not_tell(self) -> None:
        """The bill of what an instance lost meanwhile ends with the next period."""
        counted = {UUID: frozenset({("group", A), ("group", B)})}
        after_start = reporter.Reporter()
        # What the database has, what the domain has, whose release is said
        Row = tuple[
            dict[str, frozenset[tuple[str, str]]] | None, ledger.DevicesByUuid, tuple[str, ...]
        ]
        rows: tuple[Row, ...] = (
            (None, {}, ()),
            (counted, {}, ()),
            (counted, {UUID: frozenset({SECOND})}, ()),
            ({UUID: frozenset({("group", A)})}, {UUID: frozenset({SECOND})}, ()),
            ({UUID: frozenset({("group", A)})}, {}, (B,)),
            ({}, {}, (A,)),
            ({}, {}, ()),
        )
        for recorded, domains, expected in rows:
            known = None if recorded is None else records.Records(recorded)
            usage = mock.Mock(return_value=ledger.Snapshot(domains=domains, records=known))
            after_start.settle_bills(usage, lambda devices: dict.fromkeys(devices, FERMI))
            with self.subTest(expected):
                self.assertEqual(expected, tuple(a for e in self.events for a in e.addresses))
            self.events.clear()

    def test_what_was_gone_when_the_service_started(self) -> None:
        """A card without a product then, and a guest that was evacuated: each is released once."""
        both = frozenset({("group", A), ("group", B)})
        for counted, domains, expected in (
            ({UUID: both}, {}, [(A, B)]),
            ({}, {UUID: frozenset({FIRST})}, [(A,)]),
            # Nova's own passthrough has the other one.
            ({UUID: frozenset({("group", A)})}, {UUID: frozenset({FIRST, SECOND})}, [(A,)]),
        ):
            after_start = reporter.Reporter()
            now = ledger.Snapshot(records=records.Records(counted), domains=domains)
            after_start.settle_bills(mock.Mock(return_value=now), lambda devices: {FIRST: FERMI})
            for _ in range(2):
                after_start.released(OWNER, {FIRST: FERMI, SECOND: FERMI})
            self.assertEqual(expected, [event.addresses for event in self.events])
            self.events.clear()


def _main(event: Event) -> tuple[str | None, tuple[str, ...], str | None, int]:
    return event.host, event.addresses, event.instance_uuid, event.count
