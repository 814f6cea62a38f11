# SPDX-License-Identifier: Apache-2.0
"""What is sent to a nova-compute of the tests' clouds while it dies and another one begins."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import threading
import time
import unittest
from multiprocessing import connection
from typing import Any
from unittest import mock

import oslo_messaging
from nova import rpc

from nova_gpu.conf import CONF
from tests.cloud import bus, wire

_TARGET = oslo_messaging.Target(topic="compute", server="host")
_PATIENCE_S = 60.0


def _end(stream: connection.Connection[Any, Any]) -> None:
    """End a link as its process does: a thread reads, so that closing it would end nothing yet."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(stream.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


class ExchangeTest(unittest.TestCase):
    def setUp(self) -> None:
        transport = oslo_messaging.get_rpc_transport(CONF, "fake://")
        patched = mock.patch.object(rpc, "TRANSPORT", transport)
        patched.start()
        self.addCleanup(patched.stop)
        self.addCleanup(transport.cleanup)
        self.exchange = bus.Exchange()
        self.addCleanup(self.exchange.detach)
        self.client = oslo_messaging.get_rpc_client(transport, _TARGET)

    def service(self) -> tuple[connection.Connection[Any, Any], threading.Thread, list[str]]:
        """Begin a service; return its end of the link, the thread of the other, what it is given"""
        ours, its = multiprocessing.Pipe()
        given: list[str] = []

        def deliver(topic: str, ctxt: Any, message: Any) -> tuple[None, None]:
            given.append(message["method"])
            return None, None

        link = wire.Link(ours, {})
        ends = (link, wire.Link(its, {"deliver": deliver}))
        threads = [threading.Thread(target=each.serve, daemon=True) for each in ends]
        for each in threads:
            each.start()
            self.addCleanup(each.join)
        self.addCleanup(_end, its)
        self.exchange.attach(link)
        self.exchange.listen(_TARGET)
        return its, threads[0], given

    def wait_for(self, given: list[str], wanted: list[str]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while given != wanted and time.monotonic() < deadline:
            time.sleep(0.02)
        self.assertEqual(wanted, given)

    def test_what_is_sent_to_a_dead_service_waits_for_the_next_one(self) -> None:
        stream, serving, given = self.service()
        self.client.cast({}, "reboot_instance")
        self.wait_for(given, ["reboot_instance"])

        _end(stream)
        serving.join()
        self.client.cast({}, "stop_instance")
        time.sleep(0.3)  # its listener looks every 0.05 s
        self.exchange.detach()

        _, _, given = self.service()
        self.wait_for(given, ["stop_instance"])
        self.assertRegex("\n".join(self.exchange.given()), "^reboot_instance, given .* answered")
