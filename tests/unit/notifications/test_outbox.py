# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import threading

import fixtures
from oslotest import base

from nova_gpu import notifications


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

    def test_in_their_order(self) -> None:
        self.put(1, 2, 3)
        self.wait()
        self.assertEqual([1, 2, 3], self.sent)
        self.put(4)
        self.wait()
        self.assertEqual([1, 2, 3, 4], self.sent)

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
