# SPDX-License-Identifier: Apache-2.0
"""What goes to oslo.messaging, by its driver for tests."""

from __future__ import annotations

import os
import threading
import unittest
from typing import Any

import fixtures
from nova import context as nova_context
from nova import rpc
from oslo_config import fixture as config_fixture
from oslo_messaging import conffixture
from oslo_messaging.notify import _impl_test
from oslotest import base

from nova_gpu import notifications
from nova_gpu.conf import CONF
from nova_gpu.core.model import PciAddress, Product
from nova_gpu.core.vgpu.vgpu import Slot
from nova_gpu.notifications import Event, EventType, of_devices

PLAIN, VERSIONED = "unversioned", "versioned"


class EmitTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.config = self.useFixture(config_fixture.Config(CONF))
        self.useFixture(conffixture.ConfFixture(CONF)).transport_url = "fake:/"
        self.config.config(driver=["test"], group="oslo_messaging_notifications")
        self.config.config(host="gpu1")
        self.addCleanup(_impl_test.reset)

    def emitted(self, event: Event, notification_format: str, **kwargs: Any) -> list[Any]:
        """(context, message, priority) of each that was sent"""
        self.config.config(notification_format=notification_format, group="notifications")
        rpc.init(CONF)
        try:
            notifications.emit(event, **kwargs)
            thread = notifications._outbox._thread
            if thread is not None:
                thread.join(60)
        finally:
            rpc.cleanup()
        return [sent[:3] for sent in _impl_test.NOTIFICATIONS]

    def test_plain(self) -> None:
        event = Event(EventType.CLAIM, 1, addresses=("0000:04:00.0",))
        context = nova_context.RequestContext("me", "mine", is_admin=False, request_id="req-7")
        ((sent, message, priority),) = self.emitted(event, PLAIN, context=context)
        self.assertEqual(("req-7", "INFO"), (sent["request_id"], priority))
        fields = [message[key] for key in ("event_type", "publisher_id", "payload")]
        self.assertEqual(["gpu.claim", "compute.gpu1", event.payload], fields)

    def test_versioned(self) -> None:
        event = Event(EventType.NO_VALID_HOST, 2, reason="none free")
        ((_, message, priority),) = self.emitted(event, VERSIONED)
        self.assertEqual(("ERROR", "nova-scheduler:gpu1"), (priority, message["publisher_id"]))
        self.assertEqual(event.payload, message["payload"]["nova_object.data"])
        self.assertEqual("nova_gpu", message["payload"]["nova_object.namespace"])

    def test_both(self) -> None:
        self.assertEqual(2, len(self.emitted(Event(EventType.CLAIM, 1), "both")))

    def test_where_there_is_no_bus(self) -> None:
        self.assertIsNone(rpc.NOTIFIER)
        notifications.emit(Event(EventType.CLAIM, 1))

    def test_the_drivers_of_oslo_messaging_are_respected(self) -> None:
        self.config.config(driver=["noop"], group="oslo_messaging_notifications")
        self.assertEqual([], self.emitted(Event(EventType.CLAIM, 1), "both"))


class TestPayload(unittest.TestCase):
    def test_one_of_each_product_and_type(self) -> None:
        one, two = (
            Product("10de", product_id, product_id, "ada", 24576) for product_id in ("26b9", "26b5")
        )
        places = ["3b:00.4/nvidia-1155/0", "3b:00.5/nvidia-1155/0", "3b:00.6/nvidia-1156/0"]
        first, second, third = (Slot.parse(f"0000:{place}") for place in places)
        other = Slot.parse("0000:5e:00.4/nvidia-1156/0")
        whole = PciAddress.parse("0000:af:00.0")
        products = {second: one, third: one, whole: one, first: one, other: two}
        events = list(of_devices(EventType.RELEASE, products, "gpu1"))
        self.assertEqual(
            [
                ("nvidia-1155", "10de:26b9", (str(first), str(second)), 2),
                ("nvidia-1156", "10de:26b9", (str(third),), 1),
                (None, "10de:26b9", (str(whole),), 1),
                ("nvidia-1156", "10de:26b5", (str(other),), 1),
            ],
            [(event.vgpu_type, event.product_id, event.addresses, event.count) for event in events],
        )
        self.assertEqual({"gpu1"}, {event.payload["host"] for event in events})

    def test_addresses_are_in_their_order(self) -> None:
        product = Product("10de", "26b9", "26b9", "ada", 24576)
        cards = [PciAddress.parse(f"0000:{number}f:00.0") for number in range(8)]
        slots = [Slot.parse(f"0000:3b:00.{number}/nvidia-1155/0") for number in range(8)]
        products = dict.fromkeys([*reversed(cards), *reversed(slots)], product)
        events = of_devices(EventType.CLAIM, products, "gpu1")
        self.assertEqual(
            [tuple(map(str, cards)), tuple(map(str, slots))], [event.addresses for event in events]
        )

    def test_what_is_wrong_is_an_error(self) -> None:
        errors = {event_type for event_type in EventType if event_type.is_error}
        expected = {"gpu.fault", "gpu.quarantine", "gpu.no_valid_host", "gpu.reached"}
        self.assertEqual(expected, errors)


class OutboxTest(base.BaseTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger("nova_gpu"))
        self.outbox = notifications.Outbox(most_waiting=3)
        self.sent: list[object] = []
        self.broker = threading.Event()
        self.addCleanup(self.broker.set)
        self.reached = threading.Event()

    def _hang(self) -> None:
        self.reached.set()
        self.broker.wait(60)
        self.sent.append("hung")

    def put(self, *values: object) -> None:
        for value in values:
            self.outbox.put(lambda value=value: self.sent.append(value))

    def wait(self) -> None:
        thread = self.outbox._thread
        if thread is not None:
            thread.join(60)
            self.assertFalse(thread.is_alive())

    def test_a_broker_that_hangs_keeps_nobody_waiting(self) -> None:
        self.outbox.put(self._hang)
        self.reached.wait(60)
        self.put(1, 2, 3, 4, 5)
        self.assertEqual([], self.sent)
        self.assertEqual(1, self.log.output.count("Dropping notifications about GPUs: 3 wait"))
        self.broker.set()
        self.wait()
        self.assertEqual(["hung", 1, 2, 3], self.sent)

    def test_one_that_fails_is_said_and_the_next_goes_out(self) -> None:
        self.outbox.put(lambda: 1 / 0)
        self.put(1)
        self.wait()
        self.assertEqual([1], self.sent)
        self.assertIn("division", self.log.output)

    def test_a_forked_process_has_a_thread_of_its_own(self) -> None:
        self.outbox.put(self._hang)
        self.reached.wait(60)
        read, write = os.pipe()
        if os.fork() == 0:
            self.outbox.put(lambda: os.write(write, b"sent") and None)
            thread = self.outbox._thread
            if thread is not None:
                thread.join(60)
            os._exit(0)
        os.close(write)
        os.wait()
        self.assertEqual(b"sent", os.read(read, 10))
        os.close(read)
