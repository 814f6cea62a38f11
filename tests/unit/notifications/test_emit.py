# SPDX-License-Identifier: Apache-2.0
"""What goes to oslo.messaging, by its driver for tests."""

from __future__ import annotations

from typing import Any

import oslo_messaging
from nova import context as nova_context
from nova import rpc
from oslo_config import fixture as config_fixture
from oslo_messaging import conffixture
from oslo_messaging.notify import _impl_test
from oslotest import base

from nova_gpu import notifications
from nova_gpu.conf import CONF
from nova_gpu.notifications import Event, EventType

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
        ((_, message, priority),) = self.emitted(event, PLAIN)
        self.assertEqual("INFO", priority)
        self.assertEqual("gpu.claim", message["event_type"])
        self.assertEqual("compute.gpu1", message["publisher_id"])
        self.assertEqual(event.payload, message["payload"])

    def test_versioned(self) -> None:
        event = Event(EventType.NO_VALID_HOST, 2, reason="none free")
        ((_, message, priority),) = self.emitted(event, VERSIONED)
        self.assertEqual("ERROR", priority)
        self.assertEqual("nova-scheduler:gpu1", message["publisher_id"])
        self.assertEqual(event.payload, message["payload"]["nova_object.data"])
        self.assertEqual("nova_gpu", message["payload"]["nova_object.namespace"])

    def test_both(self) -> None:
        self.assertEqual(2, len(self.emitted(Event(EventType.CLAIM, 1), "both")))

    def test_the_requests_context(self) -> None:
        context = nova_context.RequestContext(
            "someone", "a-project", is_admin=False, request_id="req-7"
        )
        ((sent, _, _),) = self.emitted(Event(EventType.CLAIM, 1), PLAIN, context=context)
        self.assertEqual("req-7", sent["request_id"])

    def test_where_there_is_no_bus(self) -> None:
        self.assertIsNone(rpc.NOTIFIER)
        notifications.emit(Event(EventType.CLAIM, 1))

    def test_the_drivers_of_oslo_messaging_are_respected(self) -> None:
        self.config.config(driver=["noop"], group="oslo_messaging_notifications")
        self.assertEqual([], self.emitted(Event(EventType.CLAIM, 1), "both"))

    def test_nova_has_the_notifiers(self) -> None:
        self.assertTrue({"LEGACY_NOTIFIER", "NOTIFIER"} <= vars(rpc).keys())
        self.assertTrue(hasattr(oslo_messaging.Notifier, "prepare"))
